"""The timeline of the server: it changes when a standby is promoted, or a backup is restored to a point in time.

Commits may be lost then. Claims from before the change hold on the old timeline only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stepwell._core.store_errors import Outage

IN_RECOVERY: Final = "in recovery"
"""What a standby reports: it accepts no writes, and may be promoted while the connection stays open."""


class Timelines:
    """The timeline of one worker's connections. `era` counts its changes.

    A connection of another timeline is not used. A statement that was requested in an earlier era is not sent.
    """

    def __init__(self, current: str | None = None) -> None:
        self.current = current  # None: not known yet
        self.era = 0
        self.on_change: Callable[[], None] = lambda: None

    def admit(self, timeline: str | None) -> None:
        """Check a new connection; Outage if it must not be used. None: the server does not report its timeline."""
        if timeline == IN_RECOVERY:
            raise Outage("the server is in recovery")
        if timeline is None or self.current is None:
            self.current = self.current or timeline
        elif timeline != self.current:
            before = self.current
            self.switch_to(timeline)
            raise Outage(f"the server is on timeline {timeline}, after {before}: it may have lost commits")

    def switch_to(self, timeline: str) -> None:
        """Note that the server is on this timeline now."""
        if timeline != self.current:
            self.current = timeline
            self.era += 1
            self.on_change()

    def fits(self, timeline: str | None) -> bool:
        """Whether a connection is on the current timeline, or its timeline is not known."""
        return timeline is None or self.current is None or timeline == self.current

    def check_era(self, era: int) -> None:
        """Raise Outage if the timeline has changed since this era."""
        if era != self.era:
            raise Outage("the server's timeline has changed since this statement was requested")
