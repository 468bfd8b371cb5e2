"""A scenario beside its empty case: two databases, filled, and measured in turns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from benchmarks import server
from benchmarks.growth import scenarios
from benchmarks.growth.report import Figure, median
from benchmarks.growth.scenarios import Scenario, Sizes
from benchmarks.growth.site import BATCH, Round, Site, opened
from stepwell import Engine

NORMAL = Sizes(rounds=25, warm_ups=5, turns=BATCH)
QUICK = Sizes(rounds=1, warm_ups=1, turns=3, divisor=1_000)
SCHEDSTAT = Path("/proc/self/schedstat")  # only Linux reports a process's time on a core


@asynccontextmanager
async def sites(url: str) -> AsyncIterator[tuple[Site, Site]]:
    """Two databases beside the one of that URL, both without rows."""
    async with AsyncExitStack() as stack:
        template = await stack.enter_async_context(server.fresh_database(url))
        await Engine(template).migrate()
        urls = [await stack.enter_async_context(server.fresh_database(url, template)) for _ in range(2)]
        alone, around = [await stack.enter_async_context(opened(each)) for each in urls]
        yield alone, around


async def compare(
    scenario: Scenario, sizes: Sizes, alone: Site, around: Site, on_filled: Callable[[], object]
) -> Figure:
    """The median round of a scenario, and of its empty case."""
    async with AsyncExitStack() as stack:
        for site in (alone, around):
            await site.empty()
        if scenario.holds:
            await stack.enter_async_context(scenarios.held_open(around.url))
        await scenario.alone(alone, sizes)
        await scenario.around(around, sizes)
        on_filled()
        if sizes.divisor == 1:
            await around.observer.execute("checkpoint")
        for site in (alone, around):
            await site.meter.find_backend()
        # In turns, so that other work of the machine affects both.
        times = sizes.of_turns if scenario.is_turns else sizes
        number = times.warm_ups + times.rounds
        rounds = [(await _once(scenario, sizes, alone), await _once(scenario, sizes, around)) for _ in range(number)]
    measured = rounds[times.warm_ups :]
    label = scenario.label
    if scenario.holds and sizes.minutes:
        label = f"a transaction held open for {sizes.minutes:g} minutes, {around.worked:,} steps meanwhile"
    return Figure(
        scenario.name, label, median([pair[0] for pair in measured]), median([pair[1] for pair in measured]),
        scenario.most,
    )  # fmt: skip


async def _once(scenario: Scenario, sizes: Sizes, site: Site) -> Round:
    return await (site.turns(sizes.turns) if scenario.is_turns else site.round())
