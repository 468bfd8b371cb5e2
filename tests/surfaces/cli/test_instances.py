"""`stepwell start`, `ls` and `show`: what they print, for people and for programs, and how they exit."""

from __future__ import annotations

import json
from pathlib import Path

from stepwell import Status
from tests.conftest import MakeHarness
from tests.support.waiting import eventually
from tests.surfaces.cli.app import Gate, greet, spill
from tests.surfaces.cli.processes import APP, running, stepwell


async def test_start_prints_the_id_of_a_committed_instance(make_harness: MakeHarness) -> None:
    h = await make_harness()

    plain = await stepwell("start", APP, "greet", '{"name": "tea"}', "--queue", "mail", "--delay", "3600", url=h.url)
    from_stdin = await stepwell("start", APP, "greet", "-", "--json", url=h.url, given='{"name": "pot"}')

    first, second = await h.engine.get(int(plain.out)), await h.engine.get(from_stdin.json["id"])
    assert (plain.code, from_stdin.code) == (0, 0)
    assert (first.state, first.queue, first.status) == ({"name": "tea"}, "mail", Status.RUNNABLE)
    assert second.state == {"name": "pot"}


async def test_start_with_wait_gives_the_result_or_exits_with_1(make_harness: MakeHarness) -> None:
    h = await make_harness()

    async with running("worker", APP, url=h.url):
        done = await stepwell("start", APP, "greet", "--wait", "30", url=h.url)
        done_json = await stepwell("start", APP, "greet", "--wait=30", "--json", url=h.url)
        failed = await stepwell("start", APP, "spill", "--wait", url=h.url)
        late = await stepwell("start", APP, "greet", "--delay", "3600", "--wait", "0", url=h.url)

    assert done.code == 0
    assert json.loads(done.out.splitlines()[1]) == {"hello": "world"}
    assert (done_json.code, done_json.json["status"], done_json.json["result"]) == (0, "done", {"hello": "world"})
    assert failed.code == 1
    assert "spill #" in failed.err
    assert "failed at step 'run': ValueError: no tea" in failed.err
    assert late.code == 1
    assert "is still runnable at step 'run', waiting for its time" in late.err


async def test_ls_lists_matching_instances_as_a_table_or_as_json_lines(make_harness: MakeHarness) -> None:
    h = await make_harness([greet, spill])
    started = [await h.engine.start(greet) for _ in range(3)]
    await h.engine.start(spill)

    table = await stepwell("ls", "--machine", "greet", "--limit", "2", url=h.url)
    lines = await stepwell("ls", "--database-url", h.url, "--status=runnable", "--machine=greet", "--all", "--json")
    rest = await stepwell("ls", "--machine", "greet", "--after", started[1].id, "--json", url=h.url)

    header, *rows = table.out.splitlines()
    assert header.split() == ["id", "machine", "key", "step", "status", "attempt", "queue", "age", "waiting", "for"]
    assert [int(row.split()[0]) for row in rows] == [started[2].id, started[1].id]
    assert f"--after {started[1].id}" in table.err
    assert [json.loads(line)["id"] for line in lines.out.splitlines()] == [order.id for order in reversed(started)]
    assert rest.json["id"] == started[0].id


async def test_ls_into_a_reader_that_stops_early_prints_no_traceback(make_harness: MakeHarness) -> None:
    h = await make_harness([greet])
    await h.engine.start_many([greet.child() for _ in range(2_000)])

    async with running("ls", "--all", "--json", url=h.url) as listing:
        await listing.line()
        listing.close_stdout()
        ended = await listing.ended()

    assert (ended.code, ended.err) == (128 + 13, "")


async def test_show_prints_everything_about_an_instance(make_harness: MakeHarness) -> None:
    h = await make_harness([greet, spill])
    waiting = await h.engine.start(greet, {"name": "\x1b[31mtea"}, tenant="acme")
    async with h.engine.worker(queues={"default": 1}):
        failing = await h.engine.start(spill)
        await failing.wait(timeout=30)
        await waiting.wait(timeout=30)
    unserved = await h.engine.start(greet, queue="mail")

    failed = await stepwell("show", failing.id, url=h.url)
    shown = await stepwell("show", "--database-url", h.url, waiting.id)
    as_json = await stepwell("show", waiting.id, "--json", url=h.url)
    lonely = await stepwell("show", unserved.id, url=h.url)

    assert (failed.code, shown.code, as_json.code) == (0, 0, 0)
    assert "ValueError: no tea" in failed.out
    assert "Traceback" in failed.out
    assert "\x1b" not in shown.out
    assert "acme" in shown.out
    assert as_json.json["result"] == {"hello": "\x1b[31mtea"}
    assert "none serves queue 'mail'" in lonely.out


async def test_show_names_the_process_that_has_an_executing_instance(make_harness: MakeHarness, tmp_path: Path) -> None:
    h = await make_harness([Gate])
    order = await h.engine.start(Gate, {"folder": str(tmp_path)})

    async with running("worker", APP, url=h.url) as worker:
        await eventually((tmp_path / "begun").exists)
        shown = await stepwell("show", order.id, url=h.url)

    assert f"process {worker.pid} on " in shown.out


async def test_show_of_an_unknown_instance_exits_with_1(make_harness: MakeHarness) -> None:
    h = await make_harness()

    by_id = await stepwell("show", 4711, url=h.url)
    by_key = await stepwell("show", "--key", "order:42", url=h.url)

    assert (by_id.code, by_id.err) == (1, "stepwell: no instance with id 4711\n")
    assert (by_key.code, by_key.err) == (1, "stepwell: no instance with key 'order:42'\n")
