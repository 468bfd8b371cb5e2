"""The end of a worker: its state, why its block ends, and what the log says about steps that did not end."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Sequence

log = logging.getLogger("stepwell")

MOST_NAMED = 10  # steps, or threads, in one line of the log


class WorkerState:
    """Whether a worker stops, and whether it may still do work. The heartbeat's thread reads it too."""

    __slots__ = ("is_cut_off", "is_stopping")

    def __init__(self) -> None:
        self.is_stopping = False
        self.is_cut_off = False  # something else in this process has cancelled the worker's services


def is_wish_to_end(error: BaseException) -> bool:
    """Whether a block of the program ends because the process is to end: by Ctrl-C, or by `sys.exit`."""
    return isinstance(error, KeyboardInterrupt | SystemExit) or _is_interrupted()


def _is_interrupted() -> bool:
    """Whether Ctrl-C has come to the process, for which `asyncio.Runner` cancels its main task.

    That cancellation looks like any other; only the Runner knows. Its handler of SIGINT, a partial of a
    method, leads to it. Should that change, Ctrl-C looks like a cancellation by other code, and a test fails.
    """
    handler = signal.getsignal(signal.SIGINT)
    runner = getattr(getattr(handler, "func", None), "__self__", None)
    return isinstance(runner, asyncio.Runner) and getattr(runner, "_interrupt_count", 0) > 0


def say_left(left: Sequence[str], in_threads: int, *, is_orderly: bool) -> None:
    """Name in the log what did not end while a worker drained, and what may hold up the end of the process."""
    if in_threads:
        log.warning("worker: %d sync steps are still running in threads; they are left behind, and run again",
                    in_threads)
    if left and (threads := waited_for()):
        log.warning("worker: Python waits at its end for threads that the steps may have started: %s", _listed(threads))
    if left:
        log.warning("worker: %d steps did not end within drain_timeout; the reaper returns them%s: %s", len(left),
                    "" if is_orderly else ", as crashes, since the worker's block ended by an exception without stop()",
                    _listed(left))


def waited_for() -> list[str]:
    """The threads that Python waits for at its end, also if they idle in a pool; none of them is the engine's.

    Threads that a sync step starts are daemons, as its own is, unless it asks for others.
    """
    return [
        thread.name for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()
    ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
