"""A real proxy between engine and Postgres loses requests and replies: no step is lost, and none runs twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from stepwell import ConcurrencyLimit, Context, Done, Engine, Machine, Next, Outcome, Spawn, step
from stepwell._store.connection.sql_files import statement
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.support.proxy import Mishap, Part, Proxy, proxy_to
from tests.support.waiting import eventually

AT_ONCE, BARE, BEGIN = map(statement, ("instances/claim_started_fast", "instances/claim_fast", "workers/mark_started"))
SLOTS, LET_GO = statement("limits/claim_fast"), statement("limits/admit_waiting_fast")
COMMIT, COMMIT_BARE = statement("instances/commit"), statement("instances/commit_fast")
BEHIND_THE_FIRST = "select from stepwell.instances where hold = 'limit' having count(*) = 5"
ALL_DONE = "select from stepwell.instances where status = 'done' having count(*) = 6"
BEAT = timedelta(seconds=0.3)
EVERY = ("heartbeat", "poll", "max_poll")


class Walk(Machine, initial="one"):
    """Two steps that count their runs in the resources."""

    @step
    async def one(self, ctx: Context[Any]) -> Next:
        ctx.resources[ctx.id, ctx.step, ctx.attempt] += 1
        return Next(self.two)

    @step
    async def two(self, ctx: Context[Any]) -> Done:
        ctx.resources[ctx.id, ctx.step, ctx.attempt] += 1
        return Done("walked")


class Leaf(Machine, queue="leaves"):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        ctx.resources[ctx.id, ctx.step, ctx.attempt] += 1
        return Done()


class Far(Machine, initial="one"):
    """Continues with a row that another worker may claim, or waits for a child; then runs ahead."""

    @dataclass
    class State:
        spawns: bool = False

    @step
    async def one(self, ctx: Context[State]) -> Outcome:
        ctx.resources[ctx.id, ctx.step, ctx.attempt] += 1
        return Spawn([Leaf], then=self.two) if ctx.state.spawns else Next(self.two, priority=1)

    @step
    async def two(self, ctx: Context[State]) -> Next:
        ctx.resources[ctx.id, ctx.step, ctx.attempt] += 1
        return Next(self.three)

    @step
    async def three(self, ctx: Context[State]) -> Done:
        ctx.resources[ctx.id, ctx.step, ctx.attempt] += 1
        return Done("far")


@dataclass
class Road:
    """An engine that reaches its database only through a proxy, and the counts of its steps."""

    harness: Harness
    proxy: Proxy
    engine: Engine
    runs: Counter[tuple[int, str, int]]

    async def rows(self, *columns: str) -> set[tuple[Any, ...]]:
        return {tuple(row) for row in await self.harness.sql(f"select {', '.join(columns)} from stepwell.instances")}


@pytest.fixture
async def road(make_harness: MakeHarness) -> AsyncIterator[Road]:
    runs: Counter[tuple[int, str, int]] = Counter()
    machines = [Walk, Far, Leaf]
    limits = [ConcurrencyLimit("one", 1)]
    harness = await make_harness(machines, resources=runs, limits=limits)
    async with (
        proxy_to(harness.url) as proxy,
        Engine(
            proxy.url, machines=machines, resources=runs, limits=limits, prefetch=4, **dict.fromkeys(EVERY, BEAT)
        ) as engine,
    ):
        yield Road(harness, proxy, engine, runs)


@pytest.mark.parametrize(
    ("lost", "slots"), [(AT_ONCE, 50), (BARE, 1), (BEGIN, 50)], ids=["of an idle worker", "claim", "begin"]
)
async def test_a_claim_with_a_lost_reply_is_returned_within_a_beat_as_no_crash(
    road: Road, lost: str, slots: int
) -> None:
    keys = "abcde" if lost is BEGIN else [None] * 5  # a row with a key is not marked started by its claim
    walks = await road.engine.start_many([Walk.child(concurrency_key=key) for key in keys])
    with armed("claimer.before_claim", hold=True) as claiming:
        async with road.engine.worker({"default": slots}) as worker:
            await claiming.reached()
            loss = road.proxy.lose("answer", lost)
            claiming.release()
            await loss.happened.wait()

            results = [await walk.result(timeout=20) for walk in walks]

    assert results == ["walked"] * 5
    assert worker.stats.orphans == 5
    assert road.runs == {(walk.id, name, 0): 1 for walk in walks for name in ("one", "two")}
    assert await road.rows("status", "attempt", "crashes") == {("done", 0, 0)}
    fences = 3 if lost is BEGIN else 2  # a row with a key is claimed for each step
    again = 1 if slots == 1 else 0  # where no slot is free, one may be released for more urgent rows
    assert await road.rows("fence") <= {(2 + fences,), (2 + fences + again,)}


@pytest.mark.parametrize("part", ["request", "answer"])
@pytest.mark.parametrize(
    "lost", [SLOTS, BEGIN, COMMIT_BARE, LET_GO], ids=["the claim", "the beginning", "the end", "the letting go"]
)
async def test_a_lost_call_on_the_fast_path_to_a_slot_blocks_no_waiter(
    road: Road, lost: str, part: Part
) -> None:
    await road.engine.start_many([Leaf.child(concurrency_limit="one") for _ in range(6)])
    async with road.engine.worker({"leaves": 3}) as worker:
        await worker._graph.upkeep.reaper.stop()  # its sweep would admit them in the end
        with armed("committer.before_commit", hold=True) as ending:
            await ending.reached()
            await eventually(lambda: road.harness.sql(BEHIND_THE_FIRST))
            loss = road.proxy.lose(part, lost)
            ending.release()
        await loss.happened.wait()

        # Not by `wait`: its mark locks a row for a moment, an admission passes it over, and the sweep is stopped.
        await eventually(lambda: road.harness.sql(ALL_DONE))

    assert set(road.runs.values()) == {1}
    assert worker.stats.orphans <= 1
    assert await road.rows("status", "attempt", "crashes", "hold") == {("done", 0, 0, None)}


async def test_a_claim_that_never_reached_the_server_is_made_again(road: Road) -> None:
    walk = await road.engine.start(Walk)
    loss = road.proxy.lose("request", AT_ONCE)

    async with road.engine.worker({"default": 50}) as worker:
        result = await walk.result(timeout=20)

    assert loss.happened.is_set()
    assert result == "walked"
    assert worker.stats.orphans == 0
    assert road.runs == {(walk.id, name, 0): 1 for name in ("one", "two")}


@pytest.mark.parametrize("nth", [1, 2], ids=["of a step on the way", "of the last step"])
@pytest.mark.parametrize("part", ["request", "answer"])
@pytest.mark.parametrize("key", [None, "k"], ids=["alone", "with its key"])
async def test_a_lost_commit_and_one_with_a_lost_reply_take_effect_once(
    road: Road, key: str | None, part: Part, nth: int
) -> None:
    """A lost commit is not dropped, and a commit with a lost reply is not repeated."""
    walk = await road.engine.start(Walk, concurrency_key=key)
    commits = 0

    def lose_the_nth(_: object) -> None:
        nonlocal commits
        commits += 1
        if commits == nth:
            sent = COMMIT_BARE if key is None else COMMIT
            losses.append(road.proxy.lose(part, sent, with_commit=key is not None))

    losses: list[Mishap] = []
    with armed("committer.before_commit", fault=lose_the_nth):
        async with road.engine.worker({"default": 50}) as worker:
            result = await walk.result(timeout=20)
            await eventually(lambda: worker.stats.committed == 2)

    assert [loss.happened.is_set() for loss in losses] == [True]
    assert result == "walked"
    assert road.runs == {(walk.id, name, 0): 1 for name in ("one", "two")}
    assert (worker.stats.steps, worker.stats.stale, worker.stats.orphans) == (2, 0, 0)
    claims = 1 if key is None else 2  # a row with a key does not run ahead
    assert await road.rows("status", "attempt", "crashes", "fence") == {("done", 0, 0, claims + 2)}


@pytest.mark.parametrize("spawns", [False, True], ids=["next", "spawn"])
async def test_a_commit_with_a_lost_reply_is_kept_apart_from_the_next_commit(
    road: Road, spawns: bool
) -> None:
    """The row has its next outcome before the worker knows whether the first one was committed: no step runs twice,
    and no child is started twice."""
    far = await road.engine.start(Far, Far.State(spawns))

    def lose_until_the_next_is_there(facts: dict[str, Any]) -> None:
        if facts["ids"][:1] != [far.id]:  # a group commit of the other worker
            return
        if not losses:
            losses.append(road.proxy.lose("answer", COMMIT, with_commit=spawns))
        elif not road.runs[far.id, "two", 0]:
            losses.append(road.proxy.lose("request", COMMIT))

    losses: list[Mishap] = []
    with armed("committer.before_commit", fault=lose_until_the_next_is_there):
        async with road.harness.engine.worker({"leaves": 1}), road.engine.worker({"default": 50}) as worker:
            result = await far.result(timeout=20)
            await eventually(lambda: worker.stats.committed == 3)

    assert (result, all(loss.happened.is_set() for loss in losses)) == ("far", True)
    assert set(road.runs.values()) == {1}
    assert sorted(name for _, name, _ in road.runs) == ["one", *(["start"] if spawns else []), "three", "two"]
    assert (worker.stats.steps, worker.stats.stale, worker.stats.orphans) == (3, 0, 0)
    assert await road.rows("status", "attempt", "crashes") == {("done", 0, 0)}
