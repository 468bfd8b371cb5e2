"""The report of explored stops: which gaps there were, and what went wrong in which of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from stepwell.testing.crashes.report import Difference

PREFIX: Final = "stepwell."


@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """A place between two statements of one of the engine's transactions. `before` is None once it has committed."""

    transaction: str
    after: str
    before: str | None

    def __str__(self) -> str:
        return f"{self.transaction.removeprefix(PREFIX)}: after {self.after}" + (
            "" if self.before is None else f", before {self.before}"
        )


@dataclass(frozen=True, slots=True)
class Stop:
    """One run in which a process was halted, or killed, in a gap."""

    gap: Gap
    how: str
    troubles: list[str]
    differences: list[Difference] = field(default_factory=list)
    locks_gone: float | None = None  # seconds after the stop
    is_reached: bool = True  # False: the process did not pass this gap again, which is no fault

    @property
    def ok(self) -> bool:
        return not self.troubles and not self.differences


class StopReport:
    """The result of explored stops. `ok` if nothing was stuck, lost, or different; `str()` lists what was."""

    def __init__(self, gaps: Sequence[Gap], stops: Sequence[Stop]) -> None:
        self.gaps = list(gaps)
        self.stops = list(stops)

    @property
    def ok(self) -> bool:
        return all(stop.ok for stop in self.stops)

    @property
    def failed(self) -> list[Stop]:
        """The stops after which something was wrong."""
        return [stop for stop in self.stops if not stop.ok]

    @property
    def missed(self) -> list[Stop]:
        """Stops with a gap that was not reached again: what shares a transaction differs from run to run."""
        return [stop for stop in self.stops if not stop.is_reached]

    def check(self) -> None:
        """Raise AssertionError with the list unless all is ok."""
        if not self.ok:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        made = sum(stop.is_reached for stop in self.stops)
        head = f"{len(self.gaps)} gaps, {made} stops: "
        if self.ok:
            return head + "nothing was stuck, and everything came out as without a stop"
        lines = [head + f"{len(self.failed)} went wrong"]
        for stop in self.failed:
            lines += ["", f"{stop.how} in {stop.gap}", *(f"  {trouble}" for trouble in stop.troubles)]
            lines += [f"  {d.what}: expected {d.expected}, came {d.came}" for d in stop.differences]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"<StopReport: {len(self.failed)} of {len(self.stops)} stops went wrong>"
