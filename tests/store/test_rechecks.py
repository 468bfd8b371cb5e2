"""A change of a row after a statement's snapshot and before its lock is seen, and decides."""

from __future__ import annotations

import json
from collections.abc import Awaitable
from itertools import product
from typing import Any

import asyncpg
import pytest

from stepwell._store.connection.pool import WORKER, Database
from stepwell._store.connection.sql_files import statement
from stepwell._store.operations.claim import claim_fast
from tests.store.gate import gate_before
from tests.support.claims import request

LABELS = ["order@1"]
SHORT = pytest.mark.parametrize("claim", ["instances/claim_fast", "instances/claim_started_fast"])


@pytest.fixture
async def two(connection: asyncpg.Connection) -> tuple[int, int]:
    """Two runnable rows; statements read the first one first."""
    rows = await connection.fetch(
        "insert into stepwell.instances (machine, version, step, queue, due_at, created_at, updated_at) "
        "select 'order', 1, 'ship', 'default', now() - interval '1 hour' + n * interval '1 second', now(), now() "
        "from generate_series(1, 2) as n returning id"
    )
    first, second = (row["id"] for row in rows)
    for id_ in (first, second):
        await connection.execute("insert into stepwell.instance_data (id, state) values ($1, '{}')", id_)
    return first, second


async def enter_worker(connection: asyncpg.Connection, *, lives: bool = True) -> int:
    return int(
        await connection.fetchval(
            "insert into stepwell.workers (host, boot, pid, process, release, queues, machines, lease_until, begun_at) "
            "values ('h', 'b', 1, 'p', '0', '{}', '{order@1}', now() + $1 * interval '1 hour', 'infinity') "
            "returning id",
            1 if lives else -1,
        )
    )


async def claim_for(connection: asyncpg.Connection, worker: int, *ids: int) -> None:
    await connection.execute(
        "update stepwell.instances set status = 'executing', worker_id = $1, claimed_at = now(), fence = fence + 1 "
        "where id = any ($2::bigint[])",
        worker,
        list(ids),
    )


async def row(connection: asyncpg.Connection, id_: int) -> Any:
    return await connection.fetchrow(
        "select status, worker_id, fence, hold, attempt, crashes, watched, state::text as state "
        "from stepwell.instances join stepwell.instance_data using (id) where id = $1",
        id_,
    )


def outcome(ids: tuple[int, ...], worker: int, fence: int = 1) -> tuple[Any, ...]:
    new = {"status": "runnable", "step": "pack", "version": 1, "stores": True, "state": {"new": True}}
    return (json.dumps([{"id": id_, "worker_id": worker, "fence": fence, **new} for id_ in ids]),)


def bare(ids: tuple[int, ...], worker: int, status: str = "runnable") -> tuple[Any, ...]:
    def each(one: object, between: str) -> str:
        return between.join([str(one)] * len(ids))

    numbers = ",".join(map(str, ids))
    return (
        worker, len(ids), f"{{{numbers}}}", f"{{{each(1, ',')}}}", f"{{{each(status, ',')}}}", each("pack", "\x1e"),
        each('{"new": true}', "\x1e"), "", "{}",
    )  # fmt: skip


async def test_a_row_claimed_again_is_not_reaped_from_its_live_worker(
    url: str, connection: asyncpg.Connection, two: tuple[int, int]
) -> None:
    first, second = two
    dead, alive = await enter_worker(connection, lives=False), await enter_worker(connection)
    await claim_for(connection, dead, first, second)

    async with gate_before(url, first) as gate:
        reaping = await gate.send("instances/reap", [first, second], 10, "{}")
        await claim_for(connection, alive, second)
        await gate.open()
        reaped = await reaping

    assert [r["id"] for r in reaped] == [first]
    assert (await row(connection, second))["worker_id"] == alive


async def test_a_row_claimed_by_a_worker_newer_than_the_snapshot_is_not_reaped(
    url: str, connection: asyncpg.Connection, two: tuple[int, int]
) -> None:
    first, second = two
    await claim_for(connection, await enter_worker(connection, lives=False), first, second)

    async with gate_before(url, first) as gate:
        reaping = await gate.send("instances/reap", [first, second], 10, "{}")
        young = await enter_worker(connection)
        await claim_for(connection, young, second)
        await gate.open()
        await reaping

    assert (await row(connection, second))["worker_id"] == young


async def test_a_lost_claim_is_not_committed(
    url: str, connection: asyncpg.Connection, two: tuple[int, int]
) -> None:
    first, second = two
    worker, other = await enter_worker(connection), await enter_worker(connection)
    await claim_for(connection, worker, first, second)

    async with gate_before(url, first) as gate:
        committing = await gate.send("instances/commit", *outcome(two, worker))
        await claim_for(connection, other, second)
        await gate.open()
        committed = await committing

    assert [r["id"] for r in committed] == [first]
    assert (await row(connection, second))["worker_id"] == other
    assert (await row(connection, second))["state"] == "{}"


async def test_a_lost_claim_is_not_committed_on_the_fast_path_either(
    url: str, connection: asyncpg.Connection, two: tuple[int, int]
) -> None:
    first, second = two
    worker, other = await enter_worker(connection), await enter_worker(connection)
    await claim_for(connection, worker, first, second)

    async with gate_before(url, first) as gate:
        committing = await gate.send("instances/commit_fast", *bare(two, worker))
        await claim_for(connection, other, second)
        await gate.open()
        [committed] = await committing

    assert committed["ids"] == [first]
    assert (await row(connection, second))["worker_id"] == other
    assert (await row(connection, second))["state"] == "{}"


@pytest.mark.parametrize("fence", [0, 1], ids=["an older claim", "a claim of somebody else"])
async def test_a_commit_of_an_ended_claim_changes_nothing(
    connection: asyncpg.Connection, two: tuple[int, int], fence: int
) -> None:
    worker, other = await enter_worker(connection), await enter_worker(connection)
    await claim_for(connection, worker if fence == 0 else other, *two)
    if fence == 0:
        await claim_for(connection, worker, *two)
    before = [await row(connection, id_) for id_ in two]

    committed = await connection.fetch(statement("instances/commit"), *outcome(two, worker))

    assert committed == []
    assert [await row(connection, id_) for id_ in two] == before


@pytest.mark.parametrize("fence", [0, 1], ids=["an older claim", "a claim of somebody else"])
async def test_a_fast_commit_of_an_ended_claim_changes_nothing(
    connection: asyncpg.Connection, two: tuple[int, int], fence: int
) -> None:
    worker, other = await enter_worker(connection), await enter_worker(connection)
    await claim_for(connection, worker if fence == 0 else other, *two)
    if fence == 0:
        await claim_for(connection, worker, *two)
    before = [await row(connection, id_) for id_ in two]

    [committed] = await connection.fetch(statement("instances/commit_fast"), *bare(two, worker))

    assert (committed["number"], committed["ids"]) == (0, [])
    assert [await row(connection, id_) for id_ in two] == before


async def test_a_fast_commit_reports_a_mark_and_a_signal_set_meanwhile(
    url: str, connection: asyncpg.Connection, two: tuple[int, int]
) -> None:
    """The row with the signal is released, and does not run ahead."""
    first, second = two
    worker = await enter_worker(connection)
    await claim_for(connection, worker, first, second)

    async with gate_before(url, first) as gate:
        committing = await gate.send("instances/commit_fast", *bare(two, worker, "executing"))
        await connection.execute(
            "update stepwell.instances set watched = true, has_inbox = true where id = $1", second
        )
        await gate.open()
        [committed] = await committing

    told = [committed[name] for name in ("number", "ids", "sent_back", "watched", "with_inbox", "joining")]
    assert told == [2, None, [second], [second], [second], None]
    stayed, sent_back = await row(connection, first), await row(connection, second)
    assert (stayed["status"], stayed["worker_id"], stayed["fence"]) == ("executing", worker, 2)
    assert (sent_back["status"], sent_back["worker_id"], sent_back["fence"]) == ("runnable", None, 2)
    assert stayed["state"] == sent_back["state"] == '{"new": true}'


@pytest.fixture
async def family(connection: asyncpg.Connection, two: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    """A parent that waits for the two rows, which are its children."""
    parent = await connection.fetchval(
        "insert into stepwell.instances (machine, version, step, queue, status, due_at, created_at, updated_at, round, "
        "children_pending) values ('order', 1, 'join', 'default', 'awaiting_children', now(), now(), now(), 1, 2) "
        "returning id"
    )
    await connection.execute(
        "update stepwell.instances set parent_id = $1, parent_round = 1, child_index = id where id = any ($2)",
        parent, list(two),
    )  # fmt: skip
    return parent, two


async def waits_for(connection: asyncpg.Connection, parent: int) -> tuple[str, int]:
    found = await connection.fetchrow("select status, children_pending from stepwell.instances where id = $1", parent)
    assert found is not None
    return found["status"], found["children_pending"]


def ends(children: tuple[int, ...], worker: int, parent: int) -> tuple[Any, ...]:
    return *bare(children, worker, "done")[:-1], f"{{{parent}}}"


async def test_a_fast_end_is_counted_on_top_of_counts_since_the_snapshot(
    url: str, connection: asyncpg.Connection, family: tuple[int, tuple[int, int]]
) -> None:
    parent, (first, _) = family
    worker = await enter_worker(connection)
    await claim_for(connection, worker, first)

    async with gate_before(url, parent) as gate:
        committing = await gate.send("instances/commit_fast", *ends((first,), worker, parent))
        await connection.execute("update stepwell.instances set children_pending = 1 where id = $1", parent)
        await gate.open()
        [committed] = await committing

    assert (committed["number"], committed["freed_queues"], committed["joining"]) == (1, ["default"], None)
    assert await waits_for(connection, parent) == ("runnable", 0)


async def test_a_fast_end_with_a_locked_parent_is_left_out_and_others_count(
    url: str, connection: asyncpg.Connection, family: tuple[int, tuple[int, int]]
) -> None:
    parent, (first, second) = family
    worker = await enter_worker(connection)
    await claim_for(connection, worker, first, second)
    await connection.execute("update stepwell.instances set parent_id = null where id = $1", second)
    committing = await asyncpg.connect(url, server_settings=WORKER)

    async with connection.transaction():
        await connection.execute("select from stepwell.instances where id = $1 for no key update", parent)
        [committed] = await committing.fetch(
            statement("instances/commit_fast"), *ends((first, second), worker, parent)
        )

    assert (committed["ids"], committed["freed_queues"]) == ([second], None)
    assert await waits_for(connection, parent) == ("awaiting_children", 2)
    assert (await row(connection, first))["status"] == "executing"
    await committing.close()


@pytest.mark.parametrize(
    "why",
    ["joined = true", "continues_unit_id = 7", "parent_id = 0"],
    ids=["it was counted before", "it is an answer that went on by itself", "its parent is gone"],
)
async def test_an_end_that_only_the_full_path_can_count_is_left_to_it(
    connection: asyncpg.Connection, family: tuple[int, tuple[int, int]], why: str
) -> None:
    parent, (first, second) = family
    worker = await enter_worker(connection)
    await claim_for(connection, worker, first, second)
    await connection.execute(f"update stepwell.instances set {why} where id = $1", first)

    [committed] = await connection.fetch(
        statement("instances/commit_fast"), *ends((first, second), worker, parent)
    )

    assert (committed["ids"], committed["freed_queues"]) == ([second], None)
    assert await waits_for(connection, parent) == ("awaiting_children", 1)
    assert (await row(connection, first))["status"] == "executing"


async def test_an_end_of_an_earlier_round_is_committed_and_not_counted(
    connection: asyncpg.Connection, family: tuple[int, tuple[int, int]]
) -> None:
    parent, (first, second) = family
    worker = await enter_worker(connection)
    await claim_for(connection, worker, first, second)
    await connection.execute("update stepwell.instances set parent_round = 0 where id = $1", first)

    [committed] = await connection.fetch(
        statement("instances/commit_fast"), *ends((first, second), worker, parent)
    )

    assert (committed["number"], committed["ids"]) == (2, None)
    assert await waits_for(connection, parent) == ("awaiting_children", 1)


async def test_a_fast_commit_blocked_by_a_foreign_lock_gives_up_with_no_effect(
    url: str, connection: asyncpg.Connection, two: tuple[int, int]
) -> None:
    """It gives up soon, and has committed nothing."""
    worker = await enter_worker(connection)
    await claim_for(connection, worker, *two)
    committing = await asyncpg.connect(url, server_settings=WORKER)

    async with connection.transaction():
        await connection.execute("select from stepwell.instances where id = $1 for no key update", two[1])
        with pytest.raises(asyncpg.LockNotAvailableError):
            await committing.fetch(statement("instances/commit_fast"), *bare(two, worker))

    assert [(await row(connection, id_))["status"] for id_ in two] == ["executing"] * 2
    assert await committing.fetchval("show lock_timeout") == "0", "the bound ends with its statement"
    await committing.close()


async def test_a_mark_set_meanwhile_survives_the_commit_and_is_reported(
    url: str, connection: asyncpg.Connection, two: tuple[int, int]
) -> None:
    first, second = two
    worker = await enter_worker(connection)
    await claim_for(connection, worker, first, second)

    async with gate_before(url, first) as gate:
        committing = await gate.send("instances/commit", *outcome(two, worker))
        await connection.execute("update stepwell.instances set watched = true where id = $1", second)
        await gate.open()
        committed = await committing

    assert [(r["id"], r["watched"]) for r in committed] == [(first, False), (second, True)]
    assert (await row(connection, second))["state"] == '{"new": true}'


async def test_a_row_locked_by_a_foreign_transaction_leaves_the_batch(
    url: str, connection: asyncpg.Connection, two: tuple[int, int]
) -> None:
    first, second = two
    worker = await enter_worker(connection)
    await claim_for(connection, worker, first, second)

    async with gate_before(url, first) as gate:
        committing = await gate.send("instances/commit", *outcome(two, worker))
        async with connection.transaction():
            await connection.execute("update stepwell.instances set watched = true where id = $1", second)
            await gate.open()
            committed = await committing

    assert [r["id"] for r in committed] == [first]
    assert (await row(connection, second))["status"] == "executing"


async def claim_while(url: str, gated: int, claim: str, meanwhile: Awaitable[object]) -> list[asyncpg.Record]:
    """What a claim of both returns if something happens between its snapshot and its lock."""
    async with gate_before(url, gated) as gate:
        claiming = await gate.send(claim, 1, "default", 10, LABELS, [])
        await meanwhile
        await gate.open()
        return await claiming


async def test_a_claim_reports_a_row_changed_meanwhile_and_leaves_it_unchanged(
    url: str, connection: asyncpg.Connection, two: tuple[int, int]
) -> None:
    first, second = two
    change = connection.execute("update stepwell.instances set watched = true where id = $1", second)

    claimed = await claim_while(url, first, "instances/claim", change)

    assert [(r["verdict"], r["id"]) for r in claimed] == [("claimed", first), ("missed", None)]
    assert tuple(await row(connection, second))[:2] == ("runnable", None)


async def test_a_row_claimed_by_another_meanwhile_is_not_in_the_window(
    url: str, connection: asyncpg.Connection, two: tuple[int, int]
) -> None:
    first, second = two

    claimed = await claim_while(url, first, "instances/claim", claim_for(connection, 7, second))

    assert [(r["verdict"], r["id"]) for r in claimed] == [("claimed", first)]


@SHORT
async def test_a_fast_claim_reports_a_row_changed_meanwhile(
    url: str, connection: asyncpg.Connection, two: tuple[int, int], claim: str
) -> None:
    first, second = two
    change = connection.execute("update stepwell.instances set watched = true where id = $1", second)

    claimed = await claim_while(url, first, claim, change)

    assert [(r["id"], r["looked_at"]) for r in claimed] == [(first, 2)]
    assert tuple(await row(connection, second))[:2] == ("runnable", None)


@SHORT
async def test_a_row_claimed_by_another_meanwhile_is_not_in_a_fast_claims_window(
    url: str, connection: asyncpg.Connection, two: tuple[int, int], claim: str
) -> None:
    first, second = two

    claimed = await claim_while(url, first, claim, claim_for(connection, 7, second))

    assert [(r["id"], r["looked_at"]) for r in claimed] == [(first, 1)]


NEEDS = ("concurrency_key = 'k'", "concurrency_limit = 'few'", "rate_limit = 'slow'", "version = 9")


@pytest.mark.parametrize(
    ("claim", "needs"),
    [*product(["instances/claim_fast", "instances/claim_started_fast"], NEEDS), ("instances/claim_started_fast",
                                                                                 "crashes = 1")],
)
async def test_a_fast_claim_leaves_all_rows_if_one_needs_more_than_a_worker(
    connection: asyncpg.Connection, two: tuple[int, int], claim: str, needs: str
) -> None:
    first, second = two
    await connection.execute(f"update stepwell.instances set {needs} where id = $1", first)

    claimed = await connection.fetch(statement(claim), 1, "default", 10, LABELS, [])

    assert claimed == []
    assert [tuple(await row(connection, id_))[:2] for id_ in (first, second)] == [("runnable", None)] * 2


@pytest.mark.parametrize(
    "change", ["due_at = now() + interval '1 hour'", "hold = null, status = 'done', finished_at = now()"]
)
async def test_a_row_that_is_no_longer_due_is_left_unchanged(
    url: str, connection: asyncpg.Connection, two: tuple[int, int], change: str
) -> None:
    first, second = two
    await connection.execute("update stepwell.instances set hold = 'due'")

    async with gate_before(url, first) as gate:
        ticking = await gate.send("instances/wake_due", ["default"], [])
        await connection.execute(f"update stepwell.instances set {change} where id = $1", second)
        before = await row(connection, second)
        await gate.open()
        [ticked] = await ticking

    assert ticked["freed"] == 1
    assert await row(connection, second) == before


@pytest.mark.parametrize("worker", [1, 2])
async def test_a_lost_claim_is_not_released(
    url: str, connection: asyncpg.Connection, two: tuple[int, int], worker: int
) -> None:
    """Neither if another worker has claimed the row since, nor if the same one has."""
    first, second = two
    await claim_for(connection, 1, first, second)
    fences = [(await row(connection, id_))["fence"] for id_ in two]

    async with gate_before(url, first) as gate:
        releasing = await gate.send("instances/release", 1, [first, second], fences)
        await claim_for(connection, worker, second)
        await gate.open()
        released = await releasing

    assert [r["id"] for r in released] == [first]
    assert (await row(connection, second))["worker_id"] == worker


async def test_a_row_that_another_worker_admitted_is_not_admitted_twice(
    url: str, connection: asyncpg.Connection, two: tuple[int, int]
) -> None:
    first, second = two
    await connection.execute("update stepwell.instances set hold = 'version'")

    async with gate_before(url, first) as gate:
        freeing = await gate.send("instances/admit_versions", LABELS, False, [])
        await connection.execute("update stepwell.instances set hold = null where id = $1", second)
        await gate.open()
        freed = await freeing

    assert len(freed) == 1


async def being_sent(connection: asyncpg.Connection, worker: int) -> list[str]:
    """Two interactions that are being sent; statements read the first one first."""
    rows = await connection.fetch(
        "insert into stepwell.interactions (id, correlation, unit_id, instance_id, item, worker_id, created_at, "
        "next_at, tenant, transport, status, idempotency_key, request) "
        "select gen_random_uuid(), gen_random_uuid(), 1, 1, n, $1, now(), now(), '', 'there', 'dispatching', '', '1' "
        "from generate_series(1, 2) as n returning id::text",
        worker,
    )
    return [row["id"] for row in rows]


async def sender(connection: asyncpg.Connection, question: str) -> Any:
    return await connection.fetchval("select worker_id from stepwell.interactions where id = $1", question)


async def test_an_interaction_retaken_by_a_live_worker_is_not_returned(
    url: str, connection: asyncpg.Connection
) -> None:
    dead, alive = await enter_worker(connection, lives=False), await enter_worker(connection)
    first, second = await being_sent(connection, dead)

    async with gate_before(url, first, "interactions") as gate:
        returning = await gate.send("interactions/release_lost")
        await connection.execute("update stepwell.interactions set worker_id = $1 where id = $2", alive, second)
        await gate.open()
        returned = await returning

    assert len(returned) == 1
    assert (await sender(connection, first), await sender(connection, second)) == (None, alive)


async def test_a_dispatch_that_another_worker_has_taken_over_is_not_recorded(
    url: str, connection: asyncpg.Connection
) -> None:
    slow, other = await enter_worker(connection), await enter_worker(connection)
    first, second = await being_sent(connection, slow)

    async with gate_before(url, first, "interactions") as gate:
        noting = await gate.send(
            "interactions/record", slow, [first, second], [0, 0], [None, None], [None, None], [None, None]
        )
        await connection.execute("update stepwell.interactions set worker_id = $1 where id = $2", other, second)
        await gate.open()
        rows = await noting

    assert {row["id"] for row in rows if row["is_noted"]} == {first}
    assert (await sender(connection, first), await sender(connection, second)) == (None, other)


async def test_a_fast_claim_returns_the_most_urgent_first_in_any_table_order(
    database: Database, connection: asyncpg.Connection
) -> None:
    """The statement returns them in their order in the table."""
    rows = await connection.fetch(
        "insert into stepwell.instances (machine, version, step, queue, priority, due_at, created_at, updated_at) "
        "select 'order', 1, 'ship', 'default', n % 3 - 1, now() - (n / 2) * interval '1 year', now(), now() "
        "from generate_series(1, 60) as n returning id, priority, due_at"
    )
    worker = await enter_worker(connection)

    claimed = await claim_fast(database, request(worker, 50, LABELS))

    urgent = sorted(rows, key=lambda row: (row["priority"], row["due_at"], row["id"]))[:50]
    assert [claim.id for claim in claimed.claims] == [row["id"] for row in urgent]
    assert not claimed.missed
