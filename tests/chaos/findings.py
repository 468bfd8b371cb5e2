"""The problems that a run has found."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Findings:
    """Lost: confirmed, and now missing or ended differently.

    Doubled: happened more than once, or together with what excludes it. Stuck: does not end. Slow: took longer than it
    may. Wrong in a log: an error that no fault explains, or a process that ended by itself.
    """

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)
    details: list[str] = field(default_factory=list)  # what the database says of the rows that are stuck

    def kinds(self) -> dict[str, list[str]]:
        return {"lost": self.lost, "doubled": self.doubled, "stuck": self.stuck, "slow": self.slow,
                "wrong in a log": self.logged}  # fmt: skip

    @property
    def is_clean(self) -> bool:
        return not any(self.kinds().values())
