"""`h.crash`: a worker of a drain dies as a killed process does, and the next one continues."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import ConcurrencyLimit, Context, Done, HarnessError, Machine, Next, Status, step
from stepwell.testing import POINTS, Harness
from tests.conftest import MakeHarness
from tests.surfaces.testing_kit.machines import Family, Greeting


class Errand(Machine):
    """Two steps that each leave a trace."""

    @step
    async def start(self, ctx: Context[Any]) -> Next:
        ctx.resources[0].record("start", attempt=ctx.attempt)
        return Next(self.end)

    @step
    def end(self, ctx: Context[Any]) -> Done:
        ctx.resources[0].record("end", attempt=ctx.attempt)
        return Done(ctx.attempt)


@pytest.fixture
async def h(make_harness: MakeHarness) -> Harness:
    resources: list[Harness] = []
    h = await make_harness([Errand, Family, Greeting], resources=resources)
    resources.append(h)
    return h


@pytest.mark.parametrize(
    ("point", "starts", "begun"),
    [
        ("claimer.before_claim", ["start 0"], 0),
        ("claimer.claimed", ["start 1"], 1),
        ("executor.begun", ["start 1"], 1),
        ("executor.returned", ["start 0", "start 1"], 1),
        ("committer.before_commit", ["start 0", "start 1"], 1),
        ("committer.committed", ["start 0"], 0),
        ("timers.ticked", ["start 0"], 0),
    ],
)
async def test_nothing_is_committed_beyond_the_point_of_a_crash(
    h: Harness, point: str, starts: list[str], begun: int
) -> None:
    """The next worker expires the dead one."""
    errand = await h.engine.start(Errand)
    h.crash(point)

    tally = await h.drain()

    assert [f"{e.name} {e.facts['attempt']}" for e in h.effects] == [*starts, "end 0"]
    assert (await errand.get()).status is Status.DONE
    assert tally.crashes == 1
    left = await h.sql("select * from stepwell.instances where status = 'executing'")
    assert left == []


async def test_a_crash_is_aimed_at_a_step_and_at_a_time(h: Harness) -> None:
    for _ in range(3):
        await h.engine.start(Errand)
    h.crash("committer.before_commit", step="Errand.end", nth=2)

    tally = await h.drain()

    assert [e.facts["attempt"] for e in h.effects if e.name == "end"].count(1) == 1
    assert (tally.crashes, tally.ended) == (1, {Status.DONE: 3})


@pytest.mark.parametrize("point", ["limiter.admitted", "executor.begun", "committer.before_commit",
                                   "committer.committed"])
async def test_a_crash_under_a_limit_frees_its_slot(make_harness: MakeHarness, point: str) -> None:
    h = await make_harness([Greeting], limits=[ConcurrencyLimit("one", 1)])
    greetings = await h.engine.start_many([Greeting.child({"name": "you"}, concurrency_limit="one")] * 4)
    h.crash(point)

    tally = await h.drain(concurrency=4)

    assert (tally.crashes, [(await one.get()).status for one in greetings]) == (1, [Status.DONE] * 4)


async def test_several_crashes_may_happen_in_one_drain(h: Harness) -> None:
    errand = await h.engine.start(Errand)
    h.crash("executor.begun", step="start")
    h.crash("committer.committed", step="start")
    h.crash("committer.before_commit", step="end")

    tally = await h.drain()

    await h.assert_done(errand, 1)
    assert tally.crashes == 3


async def test_a_crash_in_the_middle_of_a_spawn_leaves_all_children_or_none(h: Harness) -> None:
    family = await h.engine.start(Family)
    h.crash("committer.before_commit", step="grow")

    await h.drain(with_scheduled=True)

    await h.assert_done(family, 2)
    assert await h.sql("select count(*) from stepwell.instances where machine = 'Greeting'") == [(2,)]


async def test_a_crashed_worker_writes_nothing_more_to_the_database(h: Harness) -> None:
    """The dead worker's lease is not ended by itself: its row shows that it did not leave."""
    await h.engine.start(Errand)
    h.crash("committer.before_commit")

    await h.drain()

    left = await h.sql("select has_left from stepwell.workers order by started_at")
    assert [row["has_left"] for row in left] == [False, True]


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"nth": 3}, r"crash at 'committer.committed', time 3 did not happen: the drain reached it 2 times"),
        ({"step": "pya"}, r"crash at 'committer.committed' of step 'pya' did not happen: the drain never reached it"),
    ],
)
async def test_a_crash_that_does_not_happen_is_an_error(h: Harness, fault: dict[str, Any], told: str) -> None:
    await h.engine.start(Errand)
    h.crash("committer.committed", **fault)

    with pytest.raises(HarnessError, match=told):
        await h.drain()


async def test_a_crash_in_one_harness_does_not_affect_another(make_harness: MakeHarness) -> None:
    one, other = [await make_harness([Greeting]) for _ in range(2)]
    for h in (one, other):
        await h.engine.start(Greeting)
    one.crash("committer.before_commit")

    tallies = await asyncio.gather(one.drain(), other.drain())

    assert [tally.crashes for tally in tallies] == [1, 0]


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ("committer.commited", "no point 'committer.commited'; did you mean 'committer.committed'?"),
        ("nowhere", f"no point 'nowhere'; there are: {', '.join(POINTS)}"),
        ("reaper.reaped", "a drain never reaches 'reaper.reaped'; let a real process die there"),
    ],
)
def test_a_wrong_point_is_an_error_that_names_it(point: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"point|drain") as error:
        Harness([Greeting]).crash(point)

    assert message in str(error.value)


def test_a_wrong_time_is_an_error_that_names_it() -> None:
    with pytest.raises(ValueError, match="nth: expected a whole number from 1, got 0"):
        Harness([Greeting]).crash("committer.committed", nth=0)
