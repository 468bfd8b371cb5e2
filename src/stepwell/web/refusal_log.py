"""Log lines about refused callers: one at once, then one per caller and ten seconds, with a count."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

EVERY = 10.0  # seconds between two lines about one caller
LATER = 0.01  # so that the clock has passed the time when the timer looks
MOST_CALLERS = 100  # that have their own lines; all others share one
OTHERS = "other callers"
STATUSES = frozenset({401, 403, 429})
_log = logging.getLogger("stepwell.web")


class _Logged:
    """A caller with a line in the log, and its refusals since."""

    __slots__ = ("last", "more", "until")

    def __init__(self, until: float) -> None:
        self.until = until
        self.more = 0
        self.last = ""


class RefusalLog:
    """Callers that were refused lately. Bounded, in memory and in lines, however many callers there are."""

    def __init__(
        self, *, every: float = EVERY, most: int = MOST_CALLERS, clock: Callable[[], float] = monotonic
    ) -> None:
        self._every = every
        self._most = most
        self._clock = clock
        self._logged: dict[str, _Logged] = {}

    def note(self, caller: str, what: str) -> None:
        """Log a refusal, or count it for the caller's next line."""
        self.log_due()
        if caller not in self._logged and len(self._logged) >= self._most:
            caller = OTHERS
        logged = self._logged.get(caller)
        if logged is None:
            _log.warning("refused %s: %s", caller, what)
            self._remember(caller)
        else:
            logged.more += 1
            logged.last = what

    def log_due(self) -> None:
        """Log the counts that are due; a caller without new refusals is forgotten, so that its next one is logged at
        once.
        """
        now = self._clock()
        for caller in [caller for caller, logged in self._logged.items() if logged.until <= now]:
            logged = self._logged.pop(caller)
            if logged.more:
                _log.warning("refused %s: %d more in %g s, the last: %s", caller, logged.more, self._every, logged.last)
                self._remember(caller)

    def _remember(self, caller: str) -> None:
        self._logged[caller] = _Logged(self._clock() + self._every)
        # Otherwise the last count would wait for the next refusal. The clock decides, so a lost timer only delays a
        # line.
        asyncio.get_running_loop().call_later(self._every + LATER, self.log_due)
