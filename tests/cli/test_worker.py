"""`stepwell worker`, a real process that gets real signals."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

from stepwell import Status
from tests.cli.app import Gate, Stuck, collect_every, count_frozen, greet
from tests.cli.processes import APP, ROOT, running
from tests.conftest import MakeHarness
from tests.support.waiting import eventually


async def test_a_worker_says_when_it_is_ready_and_runs_what_is_started(make_harness: MakeHarness) -> None:
    h = await make_harness([greet])

    async with running("worker", APP, "--queue", "default=3", "--queue", "mail=1", url=h.url) as worker:
        ready = await worker.line()
        order = await h.engine.start(greet, {"name": "tea"})
        result = await order.result(timeout=30)

    assert re.fullmatch(r"worker \d+ ready: default=3, mail=1", ready)
    assert result == {"hello": "tea"}


async def test_no_step_waits_while_the_collector_looks_through_what_was_imported(make_harness: MakeHarness) -> None:
    h = await make_harness([count_frozen])

    async with running("worker", APP, url=h.url) as worker:
        await worker.line()
        frozen = await (await h.engine.start(count_frozen)).result(timeout=30)

    assert frozen > 10_000, "objects"


async def test_the_collector_looks_less_often_unless_the_application_says_how_often(
    make_harness: MakeHarness, tmp_path: Path
) -> None:
    h = await make_harness([collect_every])
    (tmp_path / "choosy.py").write_text("import gc\n\nfrom tests.cli.app import engine\n\ngc.set_threshold(800)\n")

    async with running("worker", APP, url=h.url) as worker:
        await worker.line()
        often = await (await h.engine.start(collect_every)).result(timeout=30)
    async with running("worker", "choosy:engine", url=h.url, cwd=str(tmp_path), PYTHONPATH=str(ROOT)) as worker:
        await worker.line()
        as_said = await (await h.engine.start(collect_every)).result(timeout=30)

    assert (often, as_said) == (10_000, 800)


async def test_sigterm_lets_running_steps_end_and_exits_with_0(make_harness: MakeHarness, tmp_path: Path) -> None:
    h = await make_harness([Gate])
    order = await h.engine.start(Gate, {"folder": str(tmp_path)})

    async with running("worker", APP, url=h.url) as worker:
        await worker.line()
        await eventually((tmp_path / "begun").exists)
        worker.send(signal.SIGTERM)
        await worker.says("SIGTERM: draining, 1 steps")
        (tmp_path / "released").touch()
        ended = await worker.ended()

    assert ended.code == 0
    assert (await order.get()).result == {"released": True}
    assert [worker.alive for worker in await h.engine.insights.workers()] == [False]


async def test_a_second_signal_stops_at_once_and_the_step_is_left_to_the_next_worker(
    make_harness: MakeHarness, tmp_path: Path
) -> None:
    h = await make_harness([Gate])
    order = await h.engine.start(Gate, {"folder": str(tmp_path)})

    async with running("worker", APP, "--drain-timeout", "60", url=h.url) as worker:
        await worker.line()
        await eventually((tmp_path / "begun").exists)
        worker.send(signal.SIGINT)
        await worker.says("SIGINT: draining")
        worker.send(signal.SIGTERM)
        ended = await worker.ended()

    assert ended.code == 128 + signal.SIGTERM
    assert (await order.get()).status is Status.EXECUTING


async def test_a_step_that_its_worker_died_in_runs_again_in_the_next_one(
    make_harness: MakeHarness, tmp_path: Path
) -> None:
    h = await make_harness([Gate])
    order = await h.engine.start(Gate, {"folder": str(tmp_path)})

    async with running("worker", APP, url=h.url) as first:
        await eventually((tmp_path / "begun").exists)
        first.send(signal.SIGKILL)
        await first.ended()
    (tmp_path / "released").touch()
    async with running("worker", APP, url=h.url):
        instance = await order.wait(timeout=30)

    assert (instance.status, instance.attempt) == (Status.DONE, 1)


async def test_a_sync_step_that_never_ends_does_not_keep_the_process(make_harness: MakeHarness, tmp_path: Path) -> None:
    h = await make_harness([Stuck])
    os.mkfifo(tmp_path / "pipe")
    await h.engine.start(Stuck, {"folder": str(tmp_path)})

    async with running("worker", APP, "--drain-timeout", "0.1", url=h.url) as worker:
        await eventually((tmp_path / "begun").exists)
        worker.send(signal.SIGTERM)
        ended = await worker.ended()

    assert ended.code == 0
    assert "1 sync steps are still running in threads" in ended.err


async def test_with_json_every_line_parses_and_a_steps_own_log_names_its_instance(
    make_harness: MakeHarness, tmp_path: Path
) -> None:
    h = await make_harness([Gate])
    (tmp_path / "released").touch()
    order = await h.engine.start(Gate, {"folder": str(tmp_path)})

    async with running("worker", APP, "--queue", "default=2", "--json", url=h.url) as worker:
        ready = json.loads(await worker.line())
        await order.wait(timeout=30)
        worker.send(signal.SIGTERM)
        ended = await worker.ended()

    lines = [json.loads(line) for line in ended.err.splitlines()]
    assert ready["queues"] == {"default": 2}
    assert [line["instance"] for line in lines if line["logger"] == "gate"] == [order.id]
