"""`stepwell worker`, a real process that gets real signals."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from stepwell import Handle, Status
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually
from tests.surfaces.cli.app import Ender, Gate, Stuck, Threaded, collect_every, count_frozen, greet
from tests.surfaces.cli.processes import APP, ROOT, Running, running

MOST_PROCESSES = 12


async def test_a_worker_logs_when_it_is_ready_and_runs_started_instances(make_harness: MakeHarness) -> None:
    h = await make_harness([greet])

    async with running("worker", APP, "--queue", "default=3", "--queue", "mail=1", url=h.url) as worker:
        ready = await worker.line()
        order = await h.engine.start(greet, {"name": "tea"})
        result = await order.result(timeout=30)

    assert re.fullmatch(r"worker \d+ ready: default=3, mail=1", ready)
    assert result == {"hello": "tea"}


async def test_no_step_waits_while_the_collector_scans_imported_modules(make_harness: MakeHarness) -> None:
    h = await make_harness([count_frozen])

    async with running("worker", APP, url=h.url) as worker:
        await worker.line()
        frozen = await (await h.engine.start(count_frozen)).result(timeout=30)

    assert frozen > 10_000, "objects"


async def test_the_collector_runs_less_often_unless_the_application_sets_it(
    make_harness: MakeHarness, tmp_path: Path
) -> None:
    h = await make_harness([collect_every])
    (tmp_path / "choosy.py").write_text(
        "import gc\n\nfrom tests.surfaces.cli.app import engine\n\ngc.set_threshold(800)\n"
    )

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


async def test_a_second_sigterm_stops_at_once_and_leaves_the_step_to_the_next(
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


async def test_a_step_in_which_its_worker_died_runs_again_in_the_next_one(
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


async def test_a_sync_step_that_never_ends_does_not_keep_the_process_alive(
    make_harness: MakeHarness, tmp_path: Path
) -> None:
    h = await make_harness([Stuck])
    os.mkfifo(tmp_path / "pipe")
    await h.engine.start(Stuck, {"folder": str(tmp_path)})

    async with running("worker", APP, "--drain-timeout", "0.1", url=h.url) as worker:
        await eventually((tmp_path / "begun").exists)
        worker.send(signal.SIGTERM)
        ended = await worker.ended()

    assert ended.code == 0
    assert "1 sync steps are still running in threads" in ended.err


@pytest.mark.parametrize("processes", [1, 2])
async def test_an_async_step_that_awaits_a_thread_does_not_keep_the_process_alive(
    make_harness: MakeHarness, tmp_path: Path, processes: int
) -> None:
    h = await make_harness([Threaded])
    order = await h.engine.start(Threaded, {"folder": str(tmp_path)})

    async with running("worker", APP, "--drain-timeout", "0.1", "--processes", processes, url=h.url) as worker:
        await eventually((tmp_path / "begun").exists)
        worker.send(signal.SIGTERM)
        ended = await worker.ended()

    assert ended.code == 0
    assert re.search(rf"1 steps did not end within drain_timeout; .*#{order.id}", ended.err)


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_thread_that_outlived_its_step_does_not_keep_the_process_alive(
    make_harness: MakeHarness, tmp_path: Path, processes: int
) -> None:
    h = await make_harness([Threaded])
    order = await h.engine.start(Threaded, {"folder": str(tmp_path)}, step="briefly")

    async with running("worker", APP, "--processes", processes, url=h.url) as worker:
        failed = await order.wait(timeout=30)
        worker.send(signal.SIGTERM)
        ended = await worker.ended()

    assert (failed.status, ended.code) == (Status.FAILED, 0)
    assert re.search(r"exits while threads of its steps still run: (asyncio|uvloop)_0", ended.err)


async def test_a_step_that_cancels_the_main_task_fails_after_max_crashes(make_harness: MakeHarness) -> None:
    h = await make_harness([Ender])
    ender = await h.engine.start(Ender)
    flags = ("--max-crashes", 3, "--drain-timeout", 0.1, "--reap", 0.05)

    for _ in range(MOST_PROCESSES):
        async with running("worker", APP, *flags, url=h.url) as worker:
            await eventually(lambda worker=worker: is_over_or_ended(ender, worker))
            if (await ender.get()).status.is_terminal:
                break
            assert (await worker.ended()).code != 0

    failed = await ender.get()
    assert (failed.status, failed.error and failed.error.type, failed.crashes) == (Status.FAILED, "CrashLoop", 3)


@pytest.mark.parametrize("processes", [1, 2])
async def test_a_worker_too_old_for_the_schema_drains_and_exits_with_3(
    make_harness: MakeHarness, tmp_path: Path, processes: int
) -> None:
    h = await make_harness([Gate])
    order = await h.engine.start(Gate, {"folder": str(tmp_path)})

    async with running("worker", APP, "--heartbeat", "0.1", "--processes", processes, url=h.url) as worker:
        await eventually((tmp_path / "begun").exists)
        await eventually(lambda: are_entered(h, processes))
        await h.sql("update stepwell.meta set version = 999, oldest_code = 999")
        await worker.says("claiming nothing more")
        (tmp_path / "released").touch()
        ended = await worker.ended()

    assert ended.code == 3
    assert re.search(r"^stepwell: .* at version 999, .* upgrade the package on this host$", ended.err, re.MULTILINE)
    assert (await order.get()).result == {"released": True}


async def test_a_sync_step_that_never_ends_does_not_hide_a_too_new_schema(
    make_harness: MakeHarness, tmp_path: Path
) -> None:
    h = await make_harness([Stuck])
    os.mkfifo(tmp_path / "pipe")
    await h.engine.start(Stuck, {"folder": str(tmp_path)})

    async with running("worker", APP, "--heartbeat", "0.1", "--drain-timeout", "0.1", url=h.url) as worker:
        await eventually((tmp_path / "begun").exists)
        await h.sql("update stepwell.meta set version = 999, oldest_code = 999")
        ended = await worker.ended()

    assert ended.code == 3
    assert re.search(r"^stepwell: .* upgrade the package on this host$", ended.err, re.MULTILINE)


async def test_with_json_every_log_line_parses_and_a_steps_log_names_its_instance(
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


async def are_entered(h: Harness, processes: int) -> bool:
    return len(await h.sql("select from stepwell.workers")) == processes


async def is_over_or_ended(handle: Handle[Any], worker: Running) -> bool:
    return not worker.is_alive or (await handle.get()).status.is_terminal
