"""Logs outages: one line when an outage begins, one per minute while it lasts, one at its end.

All services of an engine and of its workers share one `Outages`. It is thread-safe: the heartbeat has its own thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from types import TracebackType
from typing import Final, NamedTuple, TypeVar

from stepwell._core.store_errors import Contention, Misfit, StoreFault

log = logging.getLogger("stepwell")

T = TypeVar("T")

REMIND_AFTER = 60.0  # seconds between two lines about the same outage
BRIEF = 1.0  # seconds; a shorter outage ends at INFO: a connection was lost and replaced
MOST_BEGINNINGS = 5  # outages logged within REMIND_AFTER; further ones only if they last
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0  # between attempts of `outlast`
ONCE: Final = "once"  # the party of statements that are not repeated

Place = tuple[str, type[Exception], str, int]


class Line(NamedTuple):
    """One line for the log."""

    level: int
    text: str


class Outages:
    """Knows which parties fail now, and logs it. A party is a loop that repeats a statement until it succeeds."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._unavailable = _Outage("the database is unavailable", "the database is available again")
        self._refusing = _Outage("the database refuses statements", "the database accepts statements again")
        self._unexpected: dict[Place, _Repeated] = {}

    def failed(self, party: object, name: str, error: Exception) -> None:
        """A statement failed that this party repeats. A Misfit is a response: the database is available."""
        log.debug("%s: %s; retrying", name, error)
        if isinstance(error, Contention):
            return
        with self._lock:
            now = monotonic()
            if isinstance(error, Misfit):
                lines = [self._unavailable.recover(party, now), self._refusing.fail(party, name, error, now)]
            else:
                lines = [self._unavailable.fail(party, name, error, now)]
        _write(lines)

    def failed_once(self, name: str, error: Exception) -> None:
        """A statement failed that is not repeated. The next beat of a worker shows whether the database answers."""
        self.failed(ONCE, name, error)

    def works(self, party: object) -> None:
        """The statement that this party repeated has succeeded."""
        if party in self._unavailable.failing or party in self._refusing.failing:
            with self._lock:
                now = monotonic()
                lines = [self._unavailable.recover(party, now), self._refusing.recover(party, now)]
            _write(lines)

    def left(self, party: object) -> None:
        """This party has stopped trying, with or without success."""
        with self._lock:
            self._unavailable.leave(party)
            self._refusing.leave(party)

    def unexpected(self, name: str, error: Exception) -> None:
        """Log an error that is not an outage: its traceback once per service, type and line of code, then a count."""
        at = _innermost(error.__traceback__)
        with self._lock:
            now = monotonic()
            repeated = self._unexpected.get((name, type(error), *at))
            if repeated is None:
                self._unexpected[name, type(error), *at] = _Repeated(now)
            count = 0 if repeated is None else repeated.count_up(now)
        if repeated is None:
            log.error("%s: unexpected error; retrying", name, exc_info=error)
        elif count:
            log.error("%s: unexpected error, %d more times: %r; retrying", name, count, error)
        else:
            log.debug("%s: unexpected error: %r; retrying", name, error)

    async def outlast(self, name: str, act: Callable[[], Awaitable[T]]) -> T:
        """Await `act()`; on a StoreFault, repeat it with backoff until it succeeds."""
        party, pause = object(), FIRST_PAUSE
        try:
            while True:
                try:
                    done = await act()
                except StoreFault as error:
                    self.failed(party, name, error)
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)
                else:
                    self.works(party)
                    return done
        finally:
            self.left(party)


class _Outage:
    """One kind of outage, from the first party that fails until none fails."""

    def __init__(self, problem: str, end: str) -> None:
        self._problem = problem
        self._end = end
        self.failing: dict[object, str] = {}  # names of the parties that fail
        self._began = 0.0
        self._recovered_at: float | None = None  # when a statement first succeeded after the last failure
        self._is_logged = False
        self._logged_at = 0.0
        self._beginnings: deque[float] = deque(maxlen=MOST_BEGINNINGS)  # of the outages that were logged

    def fail(self, party: object, name: str, error: Exception, now: float) -> Line | None:
        is_first = not self.failing
        self.failing[party] = name
        self._recovered_at = None
        if is_first:
            return self._begin(name, error, now)
        if now - self._logged_at < REMIND_AFTER:
            return None
        self._is_logged, self._logged_at = True, now
        names = ", ".join(sorted(set(self.failing.values())))
        return Line(logging.WARNING, f"{self._problem}, for {now - self._began:.0f} s now; failing: {names}; "
                    f"last error, of {name}: {error}")  # fmt: skip

    def _begin(self, name: str, error: Exception, now: float) -> Line | None:
        self._began = self._logged_at = now
        earlier = self._beginnings
        self._is_logged = len(earlier) < MOST_BEGINNINGS or now - earlier[0] >= REMIND_AFTER
        if not self._is_logged:
            return None
        earlier.append(now)
        return Line(logging.WARNING, f"{self._problem} ({name}: {error}); retrying")

    def recover(self, party: object, now: float) -> Line | None:
        if party not in self.failing:
            return None
        del self.failing[party]
        if self._recovered_at is None:
            self._recovered_at = now
        if self.failing or not self._is_logged:
            return None
        took = self._recovered_at - self._began
        level = logging.INFO if took < BRIEF else logging.WARNING
        return Line(level, f"{self._end}, after {took:.1f} s")

    def leave(self, party: object) -> None:
        self.failing.pop(party, None)


class _Repeated:
    """How often an unexpected error has occurred again since it was last logged."""

    def __init__(self, now: float) -> None:
        self._logged_at = now
        self._count = 0

    def count_up(self, now: float) -> int:
        """Count one more; returns the count if it is time to log it, else 0."""
        self._count += 1
        if now - self._logged_at < REMIND_AFTER:
            return 0
        count, self._count, self._logged_at = self._count, 0, now
        return count


def _innermost(trace: TracebackType | None) -> tuple[str, int]:
    """The line of code that raised."""
    if trace is None:
        return "", 0
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename, trace.tb_lineno


def _write(lines: list[Line | None]) -> None:
    for line in lines:
        if line is not None:
            log.log(line.level, "%s", line.text)
