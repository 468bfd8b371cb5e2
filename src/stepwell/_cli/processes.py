"""Several worker processes under one parent, which starts them, replaces killed ones, and ends them."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from stepwell._cli.exit_codes import OK, SIGNALLED

log = logging.getLogger("stepwell")

MOST = 64
PASSED_ON = (signal.SIGTERM, signal.SIGINT)
SHORT_RUN = 2.0  # seconds: a process that was killed sooner is replaced only after as long


def supervise(count: int, work: Callable[[], int]) -> int:
    """Run `count` processes until SIGTERM or SIGINT; returns the exit code of all.

    A process that exits has a reason that applies to the others too: then all end. A killed one is replaced.
    """
    return _Parent(work).run(count)


class _Parent:
    """Forks before anything is opened: the children share only the code."""

    def __init__(self, work: Callable[[], int]) -> None:
        self._work = work
        self._children: dict[int, float] = {}  # living children, and when each started
        self._received: int | None = None
        self._watched_end, self._kept_end = os.pipe()  # closed when the parent ends, however it ends

    def run(self, count: int) -> int:
        for number in PASSED_ON:
            signal.signal(number, self._on_signal)
        for _ in range(count):
            self._fork()
        code = OK
        while self._children:
            pid, status = os.wait()
            lived = time.monotonic() - self._children.pop(pid)
            ended = os.waitstatus_to_exitcode(status)
            if self._received is not None:
                code = code or (ended if ended >= 0 else SIGNALLED - ended)
            elif ended < 0:
                log.error("worker process %d was killed by signal %d; starting a new one", pid, -ended)
                time.sleep(max(0.0, SHORT_RUN - lived))
                self._fork()
            else:
                log.error("worker process %d exited with code %d; stopping the others", pid, ended)
                code = code or ended
                self._on_signal(signal.SIGTERM, None)
        return code

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        """Pass a signal on to the children; the second one stops them at once."""
        self._received = number
        for pid in self._children:
            os.kill(pid, number)

    def _fork(self) -> None:
        if self._received is not None:
            return
        sys.stdout.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # a signal must not arrive before the child is registered
        pid = os.fork()
        if pid:
            self._children[pid] = time.monotonic()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
            return
        for number in PASSED_ON:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        os.setsid()  # Ctrl-C reaches only the parent, which passes it on: once, not twice
        os.close(self._kept_end)
        threading.Thread(target=_end_with_parent, args=[self._watched_end], name="stepwell watch", daemon=True).start()
        code = 1
        try:
            code = self._work()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _end_with_parent(pipe: int) -> None:
    """Drain when the parent has ended without a signal: nothing else would end this process."""
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)
