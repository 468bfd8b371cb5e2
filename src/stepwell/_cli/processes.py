"""Several worker processes under one parent, which starts them, replaces those that are killed, and ends them."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from stepwell._cli.exits import OK, SIGNALLED

log = logging.getLogger("stepwell")

MOST = 64
PASSED_ON = (signal.SIGTERM, signal.SIGINT)
SHORT_LIFE = 2.0  # seconds: what is killed sooner is replaced only after as long


def supervise(count: int, work: Callable[[], int]) -> int:
    """Let so many processes work, until SIGTERM or SIGINT; returns the exit code of all.

    A process that ends by itself had a reason that the others have too: then all end. One that was killed is replaced.
    """
    return _Parent(work).run(count)


class _Parent:
    """Forks before anything is opened: the children share nothing but the code."""

    def __init__(self, work: Callable[[], int]) -> None:
        self._work = work
        self._born: dict[int, float] = {}  # living children, and when each began
        self._heard: int | None = None
        self._life, self._lifeline = os.pipe()  # closed by the parent's end, however it comes

    def run(self, count: int) -> int:
        for number in PASSED_ON:
            signal.signal(number, self._hear)
        for _ in range(count):
            self._fork()
        code = OK
        while self._born:
            pid, status = os.wait()
            lived = time.monotonic() - self._born.pop(pid)
            ended = os.waitstatus_to_exitcode(status)
            if self._heard is not None:
                code = code or (ended if ended >= 0 else SIGNALLED - ended)
            elif ended < 0:
                log.error("worker process %d was killed by signal %d; starting another", pid, -ended)
                time.sleep(max(0.0, SHORT_LIFE - lived))
                self._fork()
            else:
                log.error("worker process %d ended by itself, with exit code %d; ending the others", pid, ended)
                code = code or ended
                self._hear(signal.SIGTERM, None)
        return code

    def _hear(self, number: int, _: FrameType | None) -> None:
        """Pass a signal on; the second one stops the children at once."""
        self._heard = number
        for pid in self._born:
            os.kill(pid, number)

    def _fork(self) -> None:
        if self._heard is not None:
            return
        sys.stdout.flush()
        signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)  # nobody is born unnoticed
        pid = os.fork()
        if pid:
            self._born[pid] = time.monotonic()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
            return
        for number in PASSED_ON:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        os.setsid()  # Ctrl-C is for the parent, which passes it on: once, not twice
        os.close(self._lifeline)
        threading.Thread(target=_end_with_parent, args=[self._life], name="stepwell lifeline", daemon=True).start()
        code = 1
        try:
            code = self._work()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _end_with_parent(life: int) -> None:
    """Drain when the parent is gone without a word: nobody else would end this process."""
    os.read(life, 1)
    os.kill(os.getpid(), signal.SIGTERM)
