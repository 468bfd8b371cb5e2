"""The cancel of a large tree: one transaction, in which no statement finds, locks or ends more than a page of rows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepwell._store import operators
from stepwell._store.connection.pool import CLIENT, PLAN_ANEW
from stepwell._store.connection.sql_files import statement
from tests.crash.children.test_large_spawns import looked_at
from tests.crash.instances.test_operator_races import cancel
from tests.support.contest import Contest, Contestant, Plain, done, spawned

PAGE = 3
CHILDREN = 8
GRANDCHILDREN = 7
FOUND = ("operators/find_subtree", "operators/find_children", "operators/find_items")
SIZED = {"operators/lock", "operators/cancel", "operators/find_children", "operators/find_items", "await_units/close",
         "children/join"}  # fmt: skip
STATUS = """
select i.id, i.status, i.children_pending, d.operated ->> 'was', d.error ->> 'message'
from stepwell.instances i join stepwell.instance_data d using (id) order by i.id"""


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "PAGE", PAGE, raising=False)


async def tree(contest: Contest, by: Contestant, **options: Any) -> tuple[int, int]:
    """An instance with two children: the first has children of its own, the second has ended.

    Returns the id of the instance, and of a grandchild with a parent that was cancelled alone.
    """
    parent, [first, second, third, *_] = await contest.family(by, CHILDREN, **options)
    for child in (first, third):
        await contest.flush(by, spawned(child, contest.entries(*[Plain.child({})] * GRANDCHILDREN)))
    await contest.flush(by, done(second))
    await cancel(contest, by, third.id, cascade=False)
    [below, *_] = await contest.sql("select id from stepwell.instances where parent_id = $1 order by id", third.id)
    by.sent.clear()
    return parent.id, below["id"]


@pytest.mark.usefixtures("small_pages")
async def test_no_statement_of_a_cancel_changes_more_than_a_page(contest: Contest) -> None:
    [by] = await contest.join(1)
    root, below = await tree(contest, by)

    assert await cancel(contest, by, root)

    assert max(map(len, by.answers(*FOUND))) <= PAGE
    assert max(len(args[0]) for name, args, _ in by.sent if name in SIZED) <= PAGE  # type: ignore[arg-type]
    assert sum(map(len, by.answers("operators/cancel"))) == CHILDREN - 2 + 1 + 2 * GRANDCHILDREN
    assert await contest.row(below, "status") == "cancelled"
    rows = await contest.sql("select from stepwell.instances where status not in ('done', 'cancelled')")
    assert rows == []


@pytest.mark.parametrize("page", [1, 2, PAGE, 7, 8, 5_000])
async def test_a_cancel_leaves_the_same_whatever_its_pages(
    contest: Contest, page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "PAGE", page)
    [by] = await contest.join(1)
    root, _ = await tree(contest, by)

    assert await cancel(contest, by, root)

    rows = [tuple(row)[1:] for row in await contest.sql(STATUS)]
    waited = ("cancelled", 0, "awaiting_children", "cancelled")
    ran, idle = ("cancelled", 0, "executing", "cancelled"), ("cancelled", 0, "runnable", "cancelled")
    assert rows == [waited, waited, ("done", 0, None, None), waited, *[ran] * (CHILDREN - 3),
                    *[idle] * (2 * GRANDCHILDREN)]  # fmt: skip


@pytest.mark.usefixtures("small_pages")
async def test_the_pages_of_a_cancel_lock_in_the_order_of_ids(contest: Contest) -> None:
    [by] = await contest.join(1)
    root, _ = await tree(contest, by)

    await cancel(contest, by, root)

    locked = [row["id"] for rows in by.answers("operators/lock") for row in rows]
    assert len(locked) > 3 * PAGE
    assert locked == sorted(locked)


@pytest.mark.usefixtures("small_pages")
async def test_a_cancel_rolled_back_between_its_pages_cancels_nothing(contest: Contest) -> None:
    dying, other = await contest.join()
    root, _ = await tree(contest, dying)
    pages = 0

    async def dies(name: str, *args: object) -> Any:
        nonlocal pages
        pages += name == "operators/cancel"
        if pages == 2:
            raise ConnectionError
        return await fetch(name, *args)

    fetch, dying.fetch = dying.fetch, dies  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        await cancel(contest, dying, root)

    rows = await contest.sql("select from stepwell.instances where status = 'cancelled'")
    assert len(rows) == 1  # the one that was cancelled alone
    assert await cancel(contest, other, root)


@pytest.mark.usefixtures("small_pages")
async def test_very_many_keys_of_a_cancelled_tree_are_passed_on_in_pages(
    contest: Contest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operators, "MOST_KEYS", 2)
    [by] = await contest.join(1)
    parent = await contest.executing(by)
    keys = [f"key {number}" for number in range(5)]
    await contest.flush(by, spawned(parent, contest.entries(*(Plain.child({}, concurrency_key=key) for key in keys))))
    assert len([await contest.claim(by, 1) for _ in keys]) == len(keys)
    behind = [(await contest.harness.engine.start(Plain, {}, concurrency_key=key)).id for key in keys]
    await contest.sql("update stepwell.instances set hold = 'key' where id = any ($1)", behind)

    await cancel(contest, by, parent.id)

    assert [await contest.row(id_, "status", "hold") for id_ in behind] == [("runnable", None)] * len(keys)
    assert max(len(args[0]) for name, args, _ in by.sent if name == "concurrency_keys/lock") == 2  # type: ignore[arg-type]


@pytest.mark.parametrize("parents", [1, 500])
async def test_a_page_of_children_is_read_by_probes_and_no_further(contest: Contest, parents: int) -> None:
    page = 100
    [by] = await contest.join(1)
    roots = [row["id"] for row in await contest.sql(
        "insert into stepwell.instances (machine, version, step, queue, due_at, created_at, updated_at) "
        "select 'Plain', 1, 'a', 'default', now(), now(), now() from generate_series(1, $1::integer) returning id",
        parents,
    )]  # fmt: skip
    await contest.sql(
        "insert into stepwell.instances (machine, version, step, queue, due_at, created_at, updated_at, parent_id, "
        "parent_round, child_index) select 'Plain', 1, 'a', 'default', now(), now(), now(), p.id, 1, n "
        "from unnest($1::bigint[]) p(id), generate_series(1, 10000 / $2::integer) n", roots, parents,
    )  # fmt: skip
    await contest.sql("analyze stepwell.instances")

    async with by.connection.transaction():
        await by.connection.execute("; ".join(f"set local {name} = '{value}'" for name, value in CLIENT.items()))
        await by.connection.execute(PLAN_ANEW)
        text = f"explain (analyze, format json) {statement('operators/find_children')}"
        [[plan]] = await by.connection.fetch(text, roots, -1, -1, page)

    assert max(looked_at(json.loads(plan)[0]["Plan"])) < max(4 * page, 2 * parents)
