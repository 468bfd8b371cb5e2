"""An outcome with very many children is inserted in pages of one transaction, and delays no other row and no signal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from stepwell import Context, Done, Machine, Spawn, Status, job, step
from stepwell._core.commit import PAGE, Commit
from stepwell._core.instance import Claim
from stepwell._process import probes
from stepwell._store import children
from stepwell._store.connection.pool import CLIENT, PLAN_ANEW
from stepwell._store.connection.sql_files import statement
from tests.conftest import MakeHarness
from tests.support.contest import Contest, Contestant, Plain, spawned
from tests.support.waiting import eventually

MANY = 2 * PAGE + 100
INSERTS = ("children/start_fast", "instances/start")


@job
async def nothing() -> None:
    pass


class Crowd(Machine, initial="split"):
    """Spawns as many children as its state says."""

    @step
    async def split(self, ctx: Context[dict[str, int]]) -> Spawn:
        return Spawn([nothing.child()] * ctx.state["number"], then=self.join)

    @step(transactional=True)
    async def split_in_transaction(self, ctx: Context[dict[str, int]]) -> Spawn:
        await ctx.connection.execute("select 1")
        return Spawn([nothing.child()] * ctx.state["number"], then=self.join)

    @step
    async def join(self, ctx: Context[dict[str, int]]) -> Done:
        return Done([len(ctx.children), [child.index for child in ctx.children] == list(range(ctx.state["number"]))])


class Held:
    """Stops a spawn before it inserts the second page of children."""

    def __init__(self) -> None:
        self._is_there = asyncio.Event()
        self.goes_on = asyncio.Event()

    async def __call__(self, gap: dict[str, Any]) -> None:
        if (gap["after"], gap["before"]) == ("children/start_fast", "children/start_fast"):
            self._is_there.set()
            await self.goes_on.wait()

    async def reached(self) -> None:
        async with asyncio.timeout(20):
            await self._is_there.wait()


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held()
    probes.hooks[probes.GAP] = made
    yield made
    del probes.hooks[probes.GAP]


async def many(contest: Contest, by: Contestant, **options: Any) -> tuple[Claim, Commit]:
    """A claim, and the outcome that spawns very many children of it."""
    claim = await contest.executing(by)
    return claim, spawned(claim, contest.entries(*[Plain.child({}, **options)] * MANY))


async def test_no_statement_inserts_more_than_a_page_of_children(contest: Contest) -> None:
    [by] = await contest.join(1)
    parent, spawn = await many(contest, by)

    assert await contest.flush(by, spawn) == [parent.id]

    assert [len(rows[0]["ids"]) for rows in by.answers("children/start_fast")] == [PAGE, PAGE, 100]
    rows = await contest.sql(
        "select child_index, parent_round from stepwell.instances where parent_id = $1 order by id", parent.id
    )
    assert [tuple(row) for row in rows] == [(index, 1) for index in range(MANY)]
    assert await contest.row(parent.id, "status", "children_pending", "round") == ("awaiting_children", MANY, 1)


async def test_very_many_children_are_read_in_pages_and_in_order(
    contest: Contest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(children, "PAGE", 1_000)
    [by] = await contest.join(1)
    many_of, spawn = await many(contest, by)
    few_of = await contest.executing(by)
    await contest.flush(by, spawn, spawned(few_of, contest.entries(Plain.child())))

    families = await children.load(by, {many_of.id: 1, few_of.id: 1})

    assert [child.index for child in families[many_of.id]] == list(range(MANY))
    assert [child.index for child in families[few_of.id]] == [0]
    assert {len(rows) for rows in by.answers("children/load")} == {1_001, 1_000, MANY % 1_000}


async def test_a_page_of_large_states_has_fewer_children(contest: Contest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell._store.operations.start.LARGEST_TEXT", 10_000)
    [by] = await contest.join(1)
    claim = await contest.executing(by)
    wide = contest.entries(*[Plain.child({"note": "x" * 9})] * MANY)

    await contest.flush(by, spawned(claim, wide))

    pages = [len(rows[0]["ids"]) for rows in by.answers("children/start_fast")]
    assert (sum(pages), max(pages)) == (MANY, 10_000 // len(wide[0].state))


async def test_children_on_different_pages_with_one_key_are_one_child(contest: Contest) -> None:
    [by] = await contest.join(1)
    claim = await contest.executing(by)
    keys = [f"child:{number}" for number in range(MANY - 1)]
    children = contest.entries(*(Plain.child({}, key=key) for key in [*keys, "child:0"]))

    await contest.flush(by, spawned(claim, children))

    assert max(map(len, by.answers(*INSERTS))) == PAGE
    assert await contest.row(claim.id, "children_pending") == MANY - 1
    rows = await contest.sql("select child_index from stepwell.instances where key = 'child:0'")
    assert [row[0] for row in rows] == [0]


async def test_very_many_children_of_a_lost_claim_are_rolled_back(contest: Contest) -> None:
    late, reaping = await contest.join()
    parent, spawn = await many(contest, late)
    await contest.end_lease(parent)
    assert await contest.reap(reaping, [parent]) == [parent.id]

    assert await contest.flush(late, spawn) == []

    assert await contest.children(parent.id) == []
    assert await contest.row(parent.id, "status", "round", "children_pending") == ("runnable", 0, 0)


async def test_very_many_children_are_rolled_back_when_their_process_dies(contest: Contest) -> None:
    dying, other = await contest.join()
    parent, spawn = await many(contest, dying)
    await dying.begin()
    await contest.flush(dying, spawn)

    dying.connection.terminate()

    await eventually(lambda: is_free(contest, parent))
    assert await contest.children(parent.id) == []
    assert await contest.flush(other, spawn) == [parent.id]
    assert len(await contest.children(parent.id)) == MANY


async def is_free(contest: Contest, claim: Claim) -> bool:
    rows = await contest.sql("select from stepwell.instances where id = $1 for update skip locked", claim.id)
    return bool(rows)


async def test_a_spawn_waits_for_a_brief_lock_on_its_parent_after_the_children(contest: Contest) -> None:
    spawning, caller = await contest.join()
    parent, spawn = await many(contest, spawning)
    await caller.begin()
    await caller.lock_row(parent.id)

    flush = await contest.blocked(spawning, contest.flush(spawning, spawn))
    await caller.commit()

    assert await flush == [parent.id]
    assert len(spawning.answers("children/start_fast")) == 3


async def test_another_parent_spawns_and_joins_during_a_very_large_spawn(
    make_harness: MakeHarness, held: Held
) -> None:
    h = await make_harness([Crowd, nothing])
    crowd = await h.engine.start(Crowd, {"number": MANY})

    async with h.engine.worker():
        await held.reached()
        pair = await h.engine.start(Crowd, {"number": 2})
        assert await pair.result(30) == [2, True]
        assert (await crowd.get()).status is Status.EXECUTING
        assert await h.sql("select from stepwell.instances where parent_id = $1", crowd.id) == []
        held.goes_on.set()

        assert await crowd.result(60) == [MANY, True]


async def test_a_signal_and_a_cancel_do_not_wait_for_very_many_children(make_harness: MakeHarness, held: Held) -> None:
    h = await make_harness([Crowd, nothing])
    crowd = await h.engine.start(Crowd, {"number": MANY})

    async with h.engine.worker():
        await held.reached()
        await h.engine.signal(crowd.id, "hello", timeout=20)
        assert await h.engine.cancel(crowd.id, timeout=20)
        held.goes_on.set()

    assert (await crowd.get()).status is Status.CANCELLED
    assert await h.sql("select from stepwell.instances where parent_id = $1", crowd.id) == []


async def test_a_transactional_step_spawns_very_many_children_in_pages(make_harness: MakeHarness) -> None:
    h = await make_harness([Crowd, nothing])
    seen = []
    probes.hooks[probes.GAP] = lambda gap: seen.append(gap["before"])
    crowd = await h.engine.start(Crowd, {"number": MANY}, step=Crowd.split_in_transaction)

    async with h.engine.worker():
        result = await crowd.result(60)
    del probes.hooks[probes.GAP]

    assert result == [MANY, True]
    assert seen.count("children/start_fast") == 3


async def test_only_the_spawn_waits_for_a_childs_key_that_a_caller_holds(
    make_harness: MakeHarness,
) -> None:
    h = await make_harness([Crowd, Keyed, nothing])
    caller = await asyncpg.connect(h.url)
    transaction = caller.transaction()
    await transaction.start()
    await h.engine.start(nothing, connection=caller, key=f"child:{MANY - 1}")
    keyed = await h.engine.start(Keyed)

    async with h.engine.worker():
        pair = await h.engine.start(Crowd, {"number": 2})
        assert await pair.result(30) == [2, True]
        assert (await keyed.get()).status is Status.EXECUTING
        await transaction.rollback()
        assert await keyed.result(60) == MANY
    await caller.close()


class Keyed(Machine, initial="split"):
    """Spawns very many children with keys."""

    @step
    async def split(self, ctx: Context[Any]) -> Spawn:
        return Spawn([nothing.child(key=f"child:{number}") for number in range(MANY)], then=self.join)

    @step
    async def join(self, ctx: Context[Any]) -> Done:
        return Done(len(ctx.children))


INSERT_CHILDREN = """
insert into stepwell.instances (id, machine, version, step, queue, priority, due_at, tenant, parent_id, parent_round,
                                child_index, created_at, updated_at)
overriding system value
select $1 + n, 'nothing', 1, 'run', 'default', 0, now(), '', $1, 1, n, now(), now()
from generate_series(1, $2::integer) n
"""


async def test_a_cancel_finds_many_thousand_children_by_probes(make_harness: MakeHarness) -> None:
    """A join with the tree as its inner side would read all of the tree for each child."""
    number = 10_000
    h = await make_harness([Crowd, nothing])
    parent = await h.engine.start(Crowd, {"number": 0})
    connection = await asyncpg.connect(h.url, server_settings=dict(CLIENT))

    await connection.execute(INSERT_CHILDREN.replace("$1", str(parent.id)).replace("$2", str(number)))
    await connection.execute("analyze stepwell.instances")
    async with connection.transaction():
        await connection.execute(PLAN_ANEW)
        text = statement("operators/find_subtree")
        found = await connection.fetch(text, parent.id, True)
        [[plan]] = await connection.fetch(f"explain (analyze, format json) {text}", parent.id, True)
    await connection.close()

    assert len(found) == number + 1
    assert sum(looked_at(json.loads(plan)[0]["Plan"])) < 10 * number


def looked_at(node: dict[str, Any]) -> Iterator[int]:
    """The rows that each part of a plan has returned or dropped."""
    dropped = node.get("Rows Removed by Join Filter", 0) + node.get("Rows Removed by Filter", 0)
    yield int((node["Actual Rows"] + dropped) * node["Actual Loops"])
    for part in node.get("Plans", ()):
        yield from looked_at(part)
