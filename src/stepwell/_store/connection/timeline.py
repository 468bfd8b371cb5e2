"""The timeline of the server: it changes when a standby is promoted, and when a backup is restored to a point in time.

Commits may be lost then. What a worker has claimed before holds on the old timeline only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stepwell._core.store_errors import Outage

IN_RECOVERY: Final = "in recovery"
"""What a standby says: it takes no writes, and may be promoted while the connection stays."""


class Timelines:
    """The timeline that the connections of one worker are on. `era` counts the changes.

    A connection of another timeline is not used. A statement that was asked for in an earlier era is not sent.
    """

    def __init__(self, current: str | None = None) -> None:
        self.current = current  # None: no server has told yet
        self.era = 0
        self.on_change: Callable[[], None] = lambda: None

    def admit(self, timeline: str | None) -> None:
        """Look at a new connection; Outage if it is not to be used. None: the server does not tell its timeline."""
        if timeline == IN_RECOVERY:
            raise Outage("the server is in recovery")
        if timeline is None or self.current is None:
            self.current = self.current or timeline
        elif timeline != self.current:
            before = self.current
            self.switch_to(timeline)
            raise Outage(f"the server is on timeline {timeline}, after {before}: it may have lost commits")

    def switch_to(self, timeline: str) -> None:
        """The server is on that timeline from now on."""
        if timeline != self.current:
            self.current = timeline
            self.era += 1
            self.on_change()

    def fits(self, timeline: str | None) -> bool:
        """Whether a connection is of this timeline; where the server does not tell, it counts as of it."""
        return timeline is None or self.current is None or timeline == self.current

    def check_era(self, era: int) -> None:
        """Refuse what was asked for before the timeline changed."""
        if era != self.era:
            raise Outage("the server is on another timeline since this statement was asked for")
