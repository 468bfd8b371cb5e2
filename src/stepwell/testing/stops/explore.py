"""Runs a scenario with a worker that stops between two statements, in every gap that the worker passes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, Final

from stepwell.errors import HarnessError, InvalidInput
from stepwell.testing.crashes.explore import Scenario, _spread
from stepwell.testing.crashes.report import compare
from stepwell.testing.harness import check_machines
from stepwell.testing.stops.processes import Forks, How, Processes
from stepwell.testing.stops.report import Gap, Stop, StopReport
from stepwell.testing.stops.runs import Play, Played, Runs

TIMES: Final = {
    "lease": timedelta(seconds=2), "heartbeat": timedelta(seconds=0.5), "reap": timedelta(seconds=0.4),
    "poll": timedelta(seconds=0.2), "max_poll": timedelta(seconds=0.5), "drain_timeout": timedelta(seconds=1),
}  # fmt: skip
TRIES = 3  # to reach a gap again: what shares a transaction differs from run to run


async def explore_stops(
    scenario: Scenario,
    *,
    machines: Iterable[Any],
    look: Scenario | None = None,
    how: Sequence[How] = ("halt", "kill"),
    check: bool = True,
    limit: int = 100,
    at_once: int = 4,
    timeout: float = 60.0,
    **settings: Any,
) -> StopReport:
    """Run the scenario with a real worker process, then twice for each gap between two statements of a transaction of
    the engine: once the process is halted (SIGSTOP) in it, and once it is killed in it.

    The scenario starts instances and waits for them; it does not drain. A second worker process takes over. Locks of
    the halted process have to be gone within its lease, at most 10 seconds, and those of a transactional step if its
    code was running within `lease` + `reap`; everything has to end within two leases, all queues have to be claimed
    from, and a continued process has to work again. Three seconds more are allowed for work, multiplied by the
    slowness of the computer. Instances, the scenario's return value, and what `look(h)` returns at the end of each run
    have to be the same; else AssertionError lists what differs (`check=False` only returns the report). Machines have
    to be importable; they and all settings reach other processes. At most `limit` gaps are stopped in, evenly spread,
    `at_once` at the same time.
    """
    for field, given in (("scenario", scenario), *((("look", look),) if look is not None else ())):
        if not inspect.iscoroutinefunction(given):
            raise InvalidInput(field, f"expected an `async def {field}(h)`, got {given!r}")
    found = check_machines(machines, settings.get("limits", ()))
    play = Play(scenario, found, {**TIMES, **settings}, look=look)
    async with Forks() as forks:
        report = await explore(play, forks, how=how, room=asyncio.Semaphore(at_once), limit=limit, timeout=timeout)
    if check:
        report.check()
    return report


async def explore(
    play: Play, forks: Forks, *, how: Sequence[How], room: asyncio.Semaphore, limit: int, timeout: float,
    choose: Callable[[list[Gap]], list[Gap]] = list,
) -> StopReport:  # fmt: skip
    """Explore a play; `choose` says which of its gaps are stopped in."""
    runs = Runs(play, Processes(forks, [*play.machines, *Runs.own], play.options), timeout)
    async with room:
        plain = [await runs.run(), await runs.run()]
    gaps = list(dict.fromkeys(gap for played in plain for gap in played.passed))
    _check_plain(plain, gaps)
    chosen = choose(gaps)
    chosen = [chosen[number - 1] for number in _spread(len(chosen), limit)]
    async with asyncio.TaskGroup() as group:
        making = [group.create_task(_stop(runs, plain, gap, one, room)) for gap in chosen for one in how]
    return StopReport(gaps, [made.result() for made in making])


async def _stop(runs: Runs, plain: list[Played], gap: Gap, how: How, room: asyncio.Semaphore) -> Stop:
    """Stop in one gap; an error of the scenario is reported, and not raised."""
    async with room:
        for _ in range(TRIES):
            played = await runs.run(gap, how)
            if played.is_reached or played.troubles:
                break
    differences = [] if played.troubles else compare(plain[0].end_state, plain[1].end_state, played.end_state)
    return Stop(gap, how, played.troubles, differences, played.locks_gone, played.is_reached)


def _check_plain(plain: list[Played], gaps: list[Gap]) -> None:
    for played in plain:
        if played.troubles:
            raise HarnessError("the scenario does not work without a stop: " + "; ".join(played.troubles))
    if not gaps:
        raise HarnessError("the worker passed through no transaction of several statements; let the scenario start "
                           "something and wait for its end")

