"""Fair queues, as the claim's statement decides them: which rows come when, and what it costs in any backlog."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from stepwell._core.instance import Claim
from stepwell._store.connection.pool import WORKER, Database
from stepwell._store.connection.sql_files import statement
from stepwell._store.operations.claim import claim_fair, claim_full
from stepwell._store.registrations import queues
from tests.store.backlog import LABELS
from tests.store.tenants import CLAIMED, cost, fill
from tests.support.claims import request


class Fair:
    """A fair queue, its rows written as start.sql would, and a worker that claims from it turn by turn."""

    def __init__(self, database: Database, connection: asyncpg.Connection) -> None:
        self.database = database
        self.connection = connection
        self.turns: dict[int, int] = {}
        self.missed = False

    async def fill(self, tenant: str, rows: int, *, priority: int = 0, shared: bool = True) -> None:
        """This number of rows of one tenant; a % in the name makes them this number of tenants."""
        await fill(self.connection, tenant, rows, priority=priority, shared=shared)

    async def claim(self, limit: int, *, start: int = 0, **turns: Any) -> list[Claim]:
        answer = await claim_fair(
            self.database, request(1, limit, LABELS, turns=turns.get("turns", self.turns), first_share=start)
        )
        self.turns |= answer.turned or {}
        self.missed = answer.missed
        return answer.claims

    async def tenants(self, limit: int, **options: Any) -> list[str]:
        return [claim.tenant for claim in await self.claim(limit, **options)]


@pytest.fixture
def url(shared_url: str) -> str:
    """One database for all tests here: each leaves it empty."""
    return shared_url


@pytest.fixture
async def fair(database: Database, connection: asyncpg.Connection) -> AsyncIterator[Fair]:
    yield Fair(database, connection)
    await connection.execute("truncate stepwell.instances, stepwell.queues")


async def test_a_single_instance_runs_first_or_second_beside_a_busy_tenant(fair: Fair) -> None:
    await fair.fill("large", 1_000)
    await fair.fill("small", 1)

    claimed = await fair.tenants(500)

    assert len(claimed) == 500
    assert claimed.index("small") <= 1


async def test_tenants_take_turns_claim_after_claim(fair: Fair) -> None:
    for tenant, rows in (("a", 50), ("b", 20), ("c", 20)):
        await fair.fill(tenant, rows)

    claimed = [(await fair.tenants(1))[0] for _ in range(30)]

    rounds = [set(claimed[at : at + 3]) for at in range(0, 30, 3)]
    assert rounds == [{"a", "b", "c"}] * 10


@pytest.mark.parametrize("limit", [7, 10, 64])
async def test_every_tenant_gets_a_turn_before_any_gets_a_second(
    fair: Fair, limit: int
) -> None:
    await fair.fill("t%", 100)
    await fair.fill("t%", 100)

    claimed = []
    while len(claimed) < 100:
        claimed += await fair.tenants(min(limit, 100 - len(claimed)))

    assert len(set(claimed)) == 100


async def test_shares_are_equal_and_unused_shares_go_to_the_others(fair: Fair) -> None:
    for tenant, rows in (("a", 100), ("b", 100), ("c", 3)):
        await fair.fill(tenant, rows)

    claimed = Counter(await fair.tenants(60))

    assert claimed["c"] == 3
    assert min(claimed["a"], claimed["b"]) >= 20
    assert sum(claimed.values()) == 60


async def test_the_remainder_goes_to_another_tenant_each_time(fair: Fair) -> None:
    for tenant in ("a", "b", "c"):
        await fair.fill(tenant, 1_000)

    claimed = Counter[str]()
    for _ in range(30):
        claimed.update(await fair.tenants(10))  # 4, 4 and 2 each time

    assert max(claimed.values()) - min(claimed.values()) <= 4


async def test_the_first_of_each_tenant_runs_before_the_second_of_any(fair: Fair) -> None:
    for tenant in ("a", "b", "c"):
        await fair.fill(tenant, 5)

    claimed = await fair.tenants(15)

    assert [set(claimed[at : at + 3]) for at in range(0, 15, 3)] == [{"a", "b", "c"}] * 5


async def test_within_a_tenant_the_order_is_that_of_the_due_time(fair: Fair) -> None:
    await fair.fill("a", 5)
    await fair.fill("b", 5)

    claimed = await fair.claim(10)

    assert [c.id for c in claimed if c.tenant == "a"] == sorted(c.id for c in claimed if c.tenant == "a")


async def test_priority_goes_first_and_tenants_share_each_priority(fair: Fair) -> None:
    await fair.fill("patient", 5, priority=3)
    await fair.fill("a", 5, priority=-2)
    await fair.fill("b", 5, priority=-2)
    await fair.fill("other", 5, priority=3)

    claimed = await fair.claim(14)

    assert [c.priority for c in claimed] == [-2] * 10 + [3] * 4
    assert {c.tenant for c in claimed[10:12]} == {"patient", "other"}


async def test_each_priority_keeps_its_own_turn(fair: Fair) -> None:
    for tenant in ("a", "b", "c"):
        await fair.fill(tenant, 2, priority=5)
    seen = []
    for _ in range(3):
        await fair.fill("urgent", 1)
        seen.append(await fair.tenants(2))

    assert [claimed[0] for claimed in seen] == ["urgent"] * 3
    assert {claimed[1] for claimed in seen} == {"a", "b", "c"}


async def test_workers_start_with_different_tenants(fair: Fair) -> None:
    await fair.fill("t%", 50)
    starts = range(-(2**63), 2**63, 2**60)

    first = {(await fair.tenants(1, start=start, turns={}))[0] for start in starts}

    assert len(first) > 8


async def test_many_priorities_are_served_by_one_claim(fair: Fair) -> None:
    for priority in range(20):
        await fair.fill("a", 1, priority=priority)

    assert [c.priority for c in await fair.claim(50)] == list(range(20))


async def test_rows_not_migrated_yet_fill_the_rest_of_a_fair_claim(fair: Fair) -> None:
    await fair.fill("a", 3)
    await fair.fill("late", 5, shared=False)

    assert await fair.tenants(6) == ["a"] * 3 + ["late"] * 3


async def test_nothing_of_a_paused_queue_is_claimed(fair: Fair) -> None:
    await fair.fill("a", 3)
    await fair.fill("late", 5, shared=False)
    await queues.pause(fair.database, "default", None, None)

    assert await fair.claim(6) == []
    assert not fair.missed


async def test_a_claim_skips_rows_locked_by_another_claim_and_finds_the_others(
    fair: Fair, url: str
) -> None:
    await fair.fill("a", 4)
    await fair.fill("t%", 10)
    other = await asyncpg.connect(url, server_settings=WORKER)
    taking = other.transaction()
    await taking.start()
    taken = await other.fetch(statement("fair_queues/claim"), 2, "default", 5, LABELS, [], [], [], 0)

    mine = await fair.tenants(5)

    theirs = [row["tenant"] for row in taken if row["verdict"] == "claimed"]
    assert len(theirs) == 5
    assert fair.missed or len(mine) == 5  # asked to claim again, if some were not read
    mine += await fair.tenants(20)
    await taking.commit()
    await other.close()
    assert len(mine) == 9
    assert sorted(theirs + mine) == sorted(["a"] * 4 + [f"t{n}" for n in range(1, 11)])


async def test_tenants_with_locked_rows_do_not_block_other_tenants(
    fair: Fair, url: str
) -> None:
    await fair.fill("t%", 20)
    await fair.fill("held%", 10)
    foreign = await asyncpg.connect(url)
    holding = foreign.transaction()
    await holding.start()
    await foreign.execute("select from stepwell.instances where tenant like 'held%' for update")

    claimed: list[str] = []
    for _ in range(60):
        claimed += await fair.tenants(1)
    is_told_to_look_again = fair.missed

    assert sorted(claimed) == sorted(f"t{n}" for n in range(1, 21))
    assert is_told_to_look_again  # there were more shares than it read
    await holding.rollback()
    await foreign.close()


async def test_a_claim_is_not_repeated_when_few_tenants_are_all_locked(fair: Fair, url: str) -> None:
    await fair.fill("t%", 3)
    foreign = await asyncpg.connect(url)
    holding = foreign.transaction()
    await holding.start()
    await foreign.execute("select from stepwell.instances for update")

    assert await fair.claim(1) == []
    assert not fair.missed
    await holding.rollback()
    await foreign.close()


async def test_versions_that_other_workers_run_are_skipped(fair: Fair) -> None:
    await fair.fill("a", 3)
    await fair.connection.execute("update stepwell.instances set version = 7")
    await fair.fill("b", 2)

    answer = await claim_fair(fair.database, request(1, 9, LABELS, others=["order@7"]))
    foreign = await claim_fair(fair.database, request(1, 9, LABELS))

    assert [claim.tenant for claim in answer.claims] == ["b", "b"]
    assert (foreign.claims, len(foreign.foreign)) == ([], 3)


async def test_one_row_per_concurrency_key_is_claimed_across_tenants(fair: Fair) -> None:
    await fair.fill("a", 2)
    await fair.fill("b", 2)
    await fair.connection.execute("update stepwell.instances set concurrency_key = 'k'")

    answer = await claim_fair(fair.database, request(1, 9, LABELS))

    assert (len(answer.claims), len(answer.busy)) == (1, 3)


async def test_a_plain_claim_does_not_see_rows_of_a_fair_queue(fair: Fair) -> None:
    await fair.fill("a", 3)

    assert (await claim_full(fair.database, request(1, 9, LABELS))).claims == []


def _part(name: str, cte: str) -> str:
    """The text of one CTE."""
    found = re.search(rf"\b{cte} as (?:materialized )?\((.*?)\n\)", statement(name), re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.parametrize("cte", ["judged", "claimed"])
def test_a_fair_claim_holds_and_claims_rows_like_a_plain_claim(cte: str) -> None:
    assert _part("fair_queues/claim", cte).replace(", j.nth, j.turn", "") == _part("instances/claim", cte)


def test_a_claim_that_marks_started_reads_like_the_fast_one_but_no_suspects() -> None:
    begins = _part("instances/claim_started_fast", "candidates")

    assert begins.replace(" and i.crashes = 0", "", 1) == _part("instances/claim_fast", "candidates")


@asynccontextmanager
async def unpruned(url: str) -> AsyncIterator[None]:
    """Keep dead rows of repeated claims on their pages.

    Otherwise cleaning up depends on other transactions, and changes the pages that the next try touches by a fifth.
    """
    connection = await asyncpg.connect(url)
    async with connection.transaction(isolation="repeatable_read"):
        await connection.execute("select from stepwell.meta")  # from now on a snapshot keeps all dead rows
        yield
    await connection.close()


SHAPES = {  # and how many times as dear as a plain claim it may be
    "one tenant": (1.3, [("a", 20_000)]),
    "one large, one small": (1.3, [("a", 10_000), ("b", 1)]),
    "many tenants": (1.7, [("t%", 2_000)] * 10),
    "many tenants, each at a priority of its own": (2.5, [(f"p{n}", 20) for n in range(200)]),
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_fair_claim_costs_about_as_much_as_a_plain_one_in_every_backlog(
    url: str, fair: Fair, shape: str
) -> None:
    await fair.fill("a", 5_000, shared=False)
    async with unpruned(url):
        plain = await cost(url, fair=False)
    await fair.connection.execute("truncate stepwell.instances")

    factor, tenants = SHAPES[shape]
    for at, (tenant, rows) in enumerate(tenants):
        await fair.fill(tenant, rows, priority=at if tenant.startswith("p") else 0)
    await fair.connection.execute("analyze stepwell.instances")
    async with unpruned(url):
        plan = await cost(url)

    print(f"a claim of {CLAIMED}, {shape}: {plan.buffers} buffers, plain {plain.buffers}")  # noqa: T201 - to look at
    assert plan.buffers <= factor * plain.buffers
    assert plan.rows_handled() <= 80 * CLAIMED
    assert plan.indexes("instances") <= {"instances_fair", "instances_claim", "instances_concurrency_key"}


async def test_rows_are_migrated_a_thousand_at_a_time_in_both_directions(fair: Fair) -> None:
    await fair.fill("t%", 1_500, shared=False)
    await queues.declare(fair.database, {"default": "tenant"})

    over = [len(await queues.migrate(fair.database, ["default", "other"])) for _ in range(3)]
    await queues.declare(fair.database, {"default": None})
    back = [len(await queues.migrate(fair.database, ["default", "other"])) for _ in range(3)]

    assert (over, back) == ([1_000, 500, 0], [1_000, 500, 0])
    assert len((await claim_full(fair.database, request(1, 2_000, LABELS))).claims) == 1_500


async def test_only_queues_that_differ_are_declared(fair: Fair) -> None:
    db = fair.database

    said = [
        await queues.declare(db, {"default": by, "plain": None}) for by in (None, "tenant", "tenant", None, None)
    ]

    assert [[(d.queue, d.fair_by, d.is_changed) for d in declared] for declared in said] == [
        [], [("default", "tenant", False)], [], [("default", None, True)], [],
    ]  # fmt: skip
    assert await fair.connection.fetch("select from stepwell.queues where name = 'plain'") == []
