"""The state of a stopping worker, the reason why its block ends, and log lines about unfinished steps."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Sequence

log = logging.getLogger("stepwell")

MOST_NAMED = 10  # steps, or threads, in one line of the log


class WorkerState:
    """Whether a worker is stopping, and whether it may still work. The heartbeat's thread reads it too."""

    __slots__ = ("is_cut_off", "is_stopping")

    def __init__(self) -> None:
        self.is_stopping = False
        self.is_cut_off = False  # other code in this process has cancelled the worker's services


def is_wish_to_end(error: BaseException) -> bool:
    """Whether a block ends because the process is exiting: by Ctrl-C, or by `sys.exit`."""
    return isinstance(error, KeyboardInterrupt | SystemExit) or _is_interrupted()


def _is_interrupted() -> bool:
    """Whether `asyncio.Runner` has cancelled its main task because of Ctrl-C.

    The cancellation looks like any other; only the Runner knows its cause. The SIGINT handler, a partial of a method
    of the Runner, refers to it. If Python changes that, Ctrl-C looks like any cancellation, and a test fails.
    """
    handler = signal.getsignal(signal.SIGINT)
    runner = getattr(getattr(handler, "func", None), "__self__", None)
    return isinstance(runner, asyncio.Runner) and getattr(runner, "_interrupt_count", 0) > 0


def log_left(left: Sequence[str], in_threads: int, *, is_orderly: bool) -> None:
    """Log which steps did not end during a drain, and which threads may delay the exit of the process."""
    if in_threads:
        log.warning("worker: %d sync steps are still running in threads; their outcomes are dropped, and the steps "
                    "run again", in_threads)
    if left and (threads := waited_for()):
        log.warning("worker: Python waits at exit for threads that steps may have started: %s", _listed(threads))
    if left:
        log.warning("worker: %d steps did not end within drain_timeout; the reaper returns them%s: %s", len(left),
                    "" if is_orderly else ", as crashes, because an exception ended the worker's block without stop()",
                    _listed(left))


def waited_for() -> list[str]:
    """The threads that Python waits for at exit, also if they idle in a pool; none of them is the engine's.

    Threads that a sync step starts are daemons, like its own thread, unless the step requests otherwise.
    """
    return [
        thread.name for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()
    ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (", …" if len(names) > MOST_NAMED else "")
