"""`engine.sync` from many threads, beside an engine in a loop, across close, and when interrupted."""

from __future__ import annotations

import asyncio
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stepwell import DatabaseUnreachable, Engine, EngineClosed, SettingError, SyncEngine
from stepwell.sync.twin import Twin
from tests.surfaces.sync.looks import PATIENCE, until
from tests.surfaces.sync.machines import MACHINES, Doubled, Waiter, add


def loop_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("stepwell sync")}


def test_many_threads_call_at_once_and_open_one_engine(engine: Engine) -> None:
    before = loop_threads()
    together = threading.Barrier(20, timeout=PATIENCE)

    def run(number: int) -> int:
        together.wait()
        return int(engine.sync.start(Doubled, {"number": number}).result(timeout=PATIENCE))

    with ThreadPoolExecutor(20) as threads, engine.sync.worker():
        results = list(threads.map(run, range(20)))
        loops = loop_threads() - before

    assert results == [number * 2 for number in range(20)]
    assert [thread.name for thread in loops] == ["stepwell sync"]


def test_the_first_call_of_all_may_come_from_many_threads(url: str) -> None:
    engine = Engine(url, machines=MACHINES)
    together = threading.Barrier(10, timeout=PATIENCE)

    def call(_: int) -> SyncEngine:
        together.wait()
        engine.sync.check()
        engine.sync.start(Doubled)
        return engine.sync

    with ThreadPoolExecutor(10) as threads:
        made = set(threads.map(call, range(10)))

    assert made == {engine.sync}
    engine.sync.close()


async def test_a_blocking_engine_works_beside_an_engine_that_is_open_in_a_loop(url: str) -> None:
    engine = Engine(url, machines=MACHINES)

    def block() -> int:
        with engine.sync as sync:
            return int(sync.start(add, {"a": 3, "b": 4}).result(timeout=PATIENCE))

    async with engine, engine.worker():
        assert await asyncio.to_thread(block) == 7
        assert await (await engine.start(add, {"a": 1, "b": 1})).result(timeout=PATIENCE) == 2


def test_a_call_after_close_opens_the_engine_again_and_old_handles_work(sync: SyncEngine) -> None:
    handle = sync.start(Doubled)
    sync.close()
    sync.close()

    assert handle.get().id == handle.id
    assert sync.get(handle.id).id == handle.id


def test_a_with_block_closes_the_engine_and_leaves_no_thread(engine: Engine) -> None:
    before = loop_threads()

    with engine.sync as sync:
        sync.start(Doubled)

    assert sync is engine.sync
    assert loop_threads() <= before


def test_a_running_call_fails_clearly_when_another_thread_closes_the_engine(sync: SyncEngine) -> None:
    handle = sync.start(Waiter)

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(handle.result)
        until(lambda: bool(_twin(sync)._thread._calls))
        sync.close()

        with pytest.raises(EngineClosed, match=r"engine\.sync was closed while this call was under way"):
            waiting.result(timeout=PATIENCE)


def test_closing_inside_of_a_workers_block_stops_that_worker(sync: SyncEngine) -> None:
    with sync.worker() as worker:
        sync.close()

        assert worker.id is None


def test_a_worker_that_cannot_start_raises_its_reason(sync: SyncEngine) -> None:
    with pytest.raises(SettingError, match="setting 'prefech': is unknown"), sync.worker(prefech=3):
        pass

    assert _twin(sync)._held == set()


def test_ctrl_c_ends_a_waiting_call_and_cancels_it(sync: SyncEngine) -> None:
    handle = sync.start(Waiter)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    main = threading.get_ident()

    def interrupt() -> None:
        until(lambda: bool(_twin(sync)._thread._calls))
        signal.pthread_kill(main, signal.SIGINT)

    try:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(interrupt)
            with pytest.raises(KeyboardInterrupt):
                handle.result()
    finally:
        signal.signal(signal.SIGINT, before)

    until(lambda: not _twin(sync)._thread._calls)  # a running statement takes a moment to be cancelled
    assert handle.get().id == handle.id


def test_an_engine_that_could_not_open_is_opened_by_the_next_call(url: str) -> None:
    engine = Engine("postgresql://127.0.0.1:1/nowhere", machines=MACHINES)

    with pytest.raises(DatabaseUnreachable):
        engine.sync.start(Doubled)
    with pytest.raises(DatabaseUnreachable):
        engine.sync.start(Doubled)

    engine.sync.close()


def _twin(sync: SyncEngine) -> Twin:
    assert sync._twin is not None
    return sync._twin
