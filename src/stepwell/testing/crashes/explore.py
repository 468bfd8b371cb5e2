"""Runs a scenario with a crash before and after every commit, and reports where the results differ."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from stepwell._core.instance import Claim
from stepwell._core.status import Status
from stepwell.errors import HarnessError, InvalidInput
from stepwell.testing.crashes.report import Crash, Report, compare
from stepwell.testing.crashes.snapshot import EndState, end_state_of
from stepwell.testing.drain_report import Ran
from stepwell.testing.harness import Harness, check_machines

Scenario: TypeAlias = Callable[[Harness], Awaitable[Any]]
Side: TypeAlias = Literal["before", "after"]
SIDES: Final[tuple[Side, ...]] = ("before", "after")

# Before a commit, and after it is durable and before anything is notified: plain steps, transactional ones.
BEFORE = ("committer.before_commit", "transactional.written")
AFTER = ("committer.committed", "transactional.committed")
ID_GAP = 1_000  # distance between the ids of two runs: values that contain an id differ between them, and are left out


@dataclass(slots=True)
class _Plan:
    """Counts commits as they pass, and lets the worker die at one of them."""

    die_at: int | None = None
    side: Side = "before"
    seen: int = 0
    struck: bool = False
    trail: Sequence[Ran] = ()  # grows while the scenario runs, when a step has ended
    places: list[int] = field(default_factory=list)  # of each commit in the trail
    durable: set[int] = field(default_factory=set)  # commits that were not refused

    def look(self, point: str, _: Claim | None) -> bool:
        if point in BEFORE:
            self.seen += 1
            self.places.append(len(self.trail))
        elif point in AFTER:
            self.durable.add(self.seen)
        points = BEFORE if self.side == "before" else AFTER
        if self.struck or point not in points or self.seen != self.die_at:
            return False
        self.struck = True
        return True

    def steps(self) -> list[Ran]:
        """The step of each commit that was seen."""
        return [self.trail[place] for place in self.places if place < len(self.trail)]


async def explore_crashes(
    scenario: Scenario,
    *,
    machines: Iterable[Any],
    check: bool = True,
    limit: int = 100,
    timeout: float = 30.0,
    **settings: Any,
) -> Report:
    """Run the scenario without a crash, then once for every commit with a crash before it and one after it.

    Each run has a fresh harness. The scenario's return value, the end of every instance and the effects of `h.record`
    must be the same; else AssertionError shows a table of what differs (`check=False` only returns the report). At
    most `limit` commits are crashed at, evenly spread; a run may take `timeout` seconds.
    """
    if not inspect.iscoroutinefunction(scenario):
        raise InvalidInput("scenario", f"expected an `async def scenario(h)`, got {scenario!r}")
    runs = _Runs(scenario, check_machines(machines, settings.get("limits", ())), settings, timeout)
    plain = _Plan()
    expected, again = await runs.run(plain), await runs.run(_Plan())
    steps = plain.steps()
    if not steps:
        raise HarnessError("the scenario committed no step: let it start something and call `await h.drain()` "
                           "(steps of a worker that the scenario starts are not seen)")
    crashes = [
        await runs.run_crashing(number, steps[number - 1], side, (expected, again))
        for number in _spread(len(steps), limit)
        for side in SIDES
        if side == "before" or number in plain.durable
    ]
    report = Report([str(ran) for ran in steps], crashes)
    if check:
        report.check()
    return report


class _Runs:
    """All runs of one scenario."""

    def __init__(self, scenario: Scenario, machines: list[Any], settings: dict[str, Any], timeout: float) -> None:
        self._scenario = scenario
        self._machines = machines
        self._settings = settings
        self._timeout = timeout
        self._number = 0

    async def run_crashing(self, number: int, ran: Ran, side: Side, plain: tuple[EndState, EndState]) -> Crash:
        """Run with one crash; an error of the scenario is reported, and not raised."""
        plan = _Plan(number, side)
        try:
            end_state = await self.run(plan)
        except TimeoutError as error:
            return Crash(number, ran, side, [f"the scenario did not end within {self._timeout:g} s{_notes(error)}"])
        except Exception as error:  # noqa: BLE001 - an error after a crash is reported
            return Crash(number, ran, side, [f"the scenario raised {type(error).__name__}: {error}"])
        if not plan.struck:
            return Crash(number, ran, side, ["this commit was not reached again: is the scenario repeatable?"])
        return Crash(number, ran, side, [], compare(*plain, end_state))

    async def run(self, plan: _Plan) -> EndState:
        """Run once, in a fresh harness. Errors without a crash are raised."""
        self._number += 1
        async with Harness(self._machines, **self._settings) as h:
            await h._kit_queries.begin_ids_at(self._number * ID_GAP)  # noqa: SLF001 - both belong to the kit
            h._look, plan.trail = plan.look, h._trail  # noqa: SLF001
            try:
                async with asyncio.timeout(self._timeout):
                    returned = await self._scenario(h)
            except TimeoutError as error:
                error.add_note(await _standing(h))
                raise
            return await end_state_of(h, returned)


def _spread(number: int, limit: int) -> list[int]:
    if number <= limit:
        return list(range(1, number + 1))
    return sorted({1 + round(i * (number - 1) / max(limit - 1, 1)) for i in range(limit)})


async def _standing(h: Harness) -> str:
    left = [i async for i in h.engine.insights.each(status=[s for s in Status if not s.is_terminal])]
    return "; left: " + (", ".join(f"{i.machine}.{i.step} {i.status}" for i in left) or "nothing")


def _notes(error: BaseException) -> str:
    return "".join(getattr(error, "__notes__", ()))
