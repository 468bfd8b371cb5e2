"""The pool for sync steps: as many threads as are needed up to the most, and none that the interpreter waits for."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from stepwell._process.daemon_threads import DaemonThreads

PATIENCE = 20.0


def test_calls_run_concurrently_up_to_the_maximum() -> None:
    pool, both = DaemonThreads(2, "test"), threading.Barrier(2)

    answers = [pool.submit(both.wait, PATIENCE) for _ in range(4)]

    assert sorted(answer.result(PATIENCE) for answer in answers) == [0, 0, 1, 1]


def test_an_idle_thread_takes_the_next_call() -> None:
    pool = DaemonThreads(8, "test")

    names = {pool.submit(lambda: threading.current_thread().name).result(PATIENCE) for _ in range(20)}

    assert len(names) <= 2  # a thread may be idle a moment after its result is there


def test_an_error_of_a_call_is_raised_by_its_future() -> None:
    pool = DaemonThreads(1, "test")

    with pytest.raises(ZeroDivisionError):
        pool.submit(lambda: 1 / 0).result(PATIENCE)
    assert pool.submit(int, "7").result(PATIENCE) == 7


def test_a_closed_pool_drops_unstarted_calls_and_waits_for_nothing() -> None:
    pool, begun, gate = DaemonThreads(1, "test"), threading.Event(), threading.Event()

    def hold() -> bool:
        begun.set()
        return gate.wait(PATIENCE)

    running, waiting = pool.submit(hold), pool.submit(int)
    begun.wait(PATIENCE)

    pool.shutdown()

    with pytest.raises(CancelledError):
        waiting.result(PATIENCE)
    with pytest.raises(RuntimeError):
        pool.submit(int)
    gate.set()
    assert running.result(PATIENCE)


def test_no_thread_of_the_pool_delays_the_exit_of_the_interpreter() -> None:
    pool = DaemonThreads(1, "test")

    assert pool.submit(lambda: threading.current_thread().daemon).result(PATIENCE)
