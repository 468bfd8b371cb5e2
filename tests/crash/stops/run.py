"""Explores plays: `python -m tests.crash.stops.run [name …]` stops in all gaps, `--record` in none."""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

from stepwell.errors import HarnessError
from stepwell.testing import Gap, StopReport
from stepwell.testing.databases.pool import close_pools
from stepwell.testing.stops.explore import explore
from stepwell.testing.stops.processes import Forks, How
from tests.crash.stops.client_plays import PLAYS as CLIENT_PLAYS
from tests.crash.stops.known import APPLY, missed
from tests.crash.stops.looks import Named
from tests.crash.stops.worker_plays import PLAYS as WORKER_PLAYS

PLAYS = [*WORKER_PLAYS, *CLIENT_PLAYS]
HOW: tuple[How, ...] = ("halt", "kill")
TIMEOUT = 90.0
AT_ONCE = 8  # a run of transactional steps has 30 connections, and the server of the tests 300
MIGRATES = APPLY  # on a database of its own: test_migrations.py
Choose = Callable[[list[Gap]], list[Gap]]


@dataclass
class Explored:
    """A play, and the results of its stops."""

    named: Named
    report: StopReport
    took: float
    trouble: str = ""  # without any stop

    @property
    def ok(self) -> bool:
        return self.report.ok and not self.trouble

    def __str__(self) -> str:
        held = max((stop.locks_gone or 0.0 for stop in self.report.stops), default=0.0)
        if self.trouble:
            return f"{self.named.name}: {self.trouble}"
        return (f"{self.named.name}: {self.took:.0f} s, locks gone after {held:.1f} s at most, "
                f"{len(self.report.missed)} gaps not reached again; {self.report}")


async def explore_all(
    plays: Sequence[Named], *, how: Sequence[How], choose: Choose, at_once: int, tell: Callable[[Explored], None]
) -> list[Explored]:  # fmt: skip
    """Explore plays concurrently, up to a number of runs at a time."""
    room = asyncio.Semaphore(at_once)

    async def one(named: Named) -> Explored:
        began = monotonic()
        report, trouble = StopReport([], []), ""
        try:
            report = await explore(
                named.play, forks, how=how, room=room, limit=1_000, timeout=TIMEOUT,
                choose=lambda gaps: choose([gap for gap in gaps if gap.transaction in named.of]),
            )  # fmt: skip
        except HarnessError as error:
            trouble = str(error)
        explored = Explored(named, report, monotonic() - began, trouble)
        tell(explored)
        return explored

    async with Forks() as forks, asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(named)) for named in plays]
    return [task.result() for task in tasks]


def one_each(seed: int) -> Choose:
    """One gap of each transaction, by a seed."""

    def choose(gaps: list[Gap]) -> list[Gap]:
        by_name: dict[str, list[Gap]] = {}
        for gap in gaps:
            by_name.setdefault(gap.transaction, []).append(gap)
        return [random.Random(f"{seed} {name}").choice(sorted(of, key=str)) for name, of in sorted(by_name.items())]  # noqa: S311 - a choice, not a secret

    return choose


def statements(explored: Sequence[Explored]) -> dict[str, set[str]]:
    """The statements that were sent, by transaction."""
    found: dict[str, set[str]] = {}
    for one in explored:
        for gap in one.report.gaps:
            found.setdefault(gap.transaction, set()).update({gap.after, gap.before or "commit"})
    return found


def _tell(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="plays; all, if none is named")
    parser.add_argument("--record", action="store_true", help="stop nowhere")
    parser.add_argument("--how", nargs="*", choices=HOW, default=HOW)
    parser.add_argument("--at-once", type=int, default=AT_ONCE, metavar="RUNS")
    given = parser.parse_args()
    plays = [named for named in PLAYS if not given.names or named.name in given.names]
    choose: Choose = (lambda _: []) if given.record else list
    began = monotonic()
    explored = asyncio.run(
        explore_all(plays, how=given.how, choose=choose, at_once=given.at_once, tell=_tell)
    )
    close_pools()
    problems = [] if given.names else [one for one in missed(statements(explored)) if not one.startswith(MIGRATES)]
    stops = sum(len(one.report.stops) for one in explored)
    failed = sum(len(one.report.failed) + bool(one.trouble) for one in explored)
    for line in (*problems, f"{stops} stops in {monotonic() - began:.0f} s; {failed} went wrong"):
        _tell(line)
    return int(bool(failed or problems))


if __name__ == "__main__":
    raise SystemExit(main())
