"""A unit of thousands of interactions ends in one small commit; those that it leaves open are closed in pages."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from stepwell import ConcurrencyLimit
from stepwell._core.instance import Claim
from stepwell._store import await_units, limits, operators, retention
from stepwell.errors import InteractionClosed
from tests.crash.conftest import StartWorker
from tests.crash.pipelines.test_item_races import cancel, counted, items
from tests.support.asked import SOON, Asked, Asker, each
from tests.support.contest import Contestant, done, stopped
from tests.support.waiting import eventually

MANY = 2_500
PAGES = 3

End = Callable[[Asked, Contestant, int, Claim], Awaitable[Any]]


async def fail_one(asked: Asked, by: Contestant, parent: int, item: Claim) -> None:
    assert await asked.flush(by, stopped(item)) == [item.id]


async def expire(asked: Asked, by: Contestant, parent: int, item: Claim) -> None:
    await asked.sql(
        "update stepwell.interactions set deadline = created_at where instance_id = $1 and item = $2", parent, MANY - 1
    )
    assert await asked.expire(by) == (1, 0)


async def cancel_parent(asked: Asked, by: Contestant, parent: int, item: Claim) -> None:
    assert await cancel(asked, by, parent)


async def cancel_by_sql(asked: Asked, by: Contestant, parent: int, item: Claim) -> None:
    assert await by.connection.fetchval("select stepwell.try_cancel($1)", parent)


async def restart_parent(asked: Asked, by: Contestant, parent: int, item: Claim) -> None:
    await asked.operating(by).restart(parent, "start", {}, None, by=None, tenant=None)


ENDS: list[End] = [fail_one, expire, cancel_parent, cancel_by_sql, restart_parent]


async def large(asked: Asked, by: Contestant) -> tuple[int, Claim, int]:
    """An instance that waits for thousands of replies; the claim of an item; an item that is not claimed."""
    parent, _, [item] = await items(asked, by, 1, MANY, window=MANY, timeout=SOON, on_timeout="fail")
    await asked.complete(by, (await asked.ids(parent))[MANY - 2])
    [waiting] = await asked.sql(
        "select id from stepwell.instances where continues_unit_id is not null and status = 'runnable'"
    )
    return parent, item, waiting["id"]


async def open_questions(asked: Asked, parent: int) -> int:
    rows = await asked.sql(
        "select from stepwell.interactions where instance_id = $1 and finished_at is null", parent
    )
    return len(rows)


async def cleaned(asked: Asked, by: Contestant) -> int:
    """Close all pages, as the reconciler does; returns how many there were."""
    pages = 0
    while await await_units.clean_up(by) is not None:  # type: ignore[arg-type]
        pages += 1
    return pages


@pytest.mark.parametrize("end", ENDS)
async def test_the_end_of_a_large_unit_changes_none_of_its_interactions(asked: Asked, end: End) -> None:
    [by] = await asked.join(1)
    parent, item, _ = await large(asked, by)
    before = await open_questions(asked, parent)

    await end(asked, by, parent, item)

    assert (await asked.unit(parent))[0] != "waiting"
    assert await open_questions(asked, parent) >= before - 1  # except for one that has timed out


@pytest.mark.parametrize("end", ENDS)
async def test_interactions_that_a_large_unit_leaves_open_are_closed_in_pages(asked: Asked, end: End) -> None:
    [by] = await asked.join(1)
    parent, item, waiting = await large(asked, by)
    await end(asked, by, parent, item)

    pages = [await asked.sql("select count(*) from stepwell.interactions where status = 'cancelled'")]
    while await await_units.clean_up(by) is not None:  # type: ignore[arg-type]
        pages.append(await asked.sql("select count(*) from stepwell.interactions where status = 'cancelled'"))

    numbers = [row["count"] for [row] in pages]
    assert len(numbers) == PAGES + 1
    assert max(after - before for before, after in pairwise(numbers)) <= await_units.PAGE
    assert await open_questions(asked, parent) == 0
    assert await asked.row(waiting, "status") == "cancelled"
    assert await asked.problems() == []


@pytest.mark.parametrize("end", ENDS)
async def test_open_interactions_of_an_ended_unit_are_not_completed_nor_listed(asked: Asked, end: End) -> None:
    """Nor do they expire."""
    [by] = await asked.join(1)
    parent, item, _ = await large(asked, by)
    [*_, question, _, _] = await asked.ids(parent)
    await end(asked, by, parent, item)

    for answer in (asked.complete(by, question), asked.harness.engine.complete(interaction=question, reply=1)):
        with pytest.raises(InteractionClosed):
            await answer
    assert (await asked.harness.engine.interactions.pending()).items == []
    seen = await asked.harness.engine.interactions.get(question)
    assert (seen.status, seen.finished_at is not None) == ("cancelled", True)
    await asked.harness.advance(SOON * 2)
    assert await asked.expire(by) == (0, 0)


async def test_a_completion_that_waits_for_the_end_of_a_large_unit_is_refused(asked: Asked) -> None:
    ending, answering = await asked.join()
    parent, item, _ = await large(asked, ending)
    [*_, question, _, _] = await asked.ids(parent)
    await ending.begin()
    await asked.flush(ending, stopped(item))

    answer = await asked.blocked(answering, by_sql(answering, question))
    await ending.commit()

    with pytest.raises(Exception, match="is closed: cancelled"):
        await answer
    assert await cleaned(asked, answering) == PAGES
    assert await asked.problems() == []


async def by_sql(by: Contestant, question: str) -> None:
    await by.connection.fetch("select stepwell.complete(interaction => $1, reply => '1')", question)


async def test_a_completion_before_the_end_of_a_large_unit_is_kept(asked: Asked) -> None:
    answering, ending = await asked.join()
    parent, item, _ = await large(asked, ending)
    [*_, question, _, _] = await asked.ids(parent)
    await answering.begin()
    await asked.complete(answering, question)

    assert await asked.flush(ending, stopped(item)) == []  # the parent is locked: the commit is retried
    await answering.commit()
    await asked.flush(ending, stopped(item))
    await cleaned(asked, ending)

    statuses = await asked.statuses(parent)
    assert (statuses[-3], statuses.count("cancelled")) == ("completed", MANY - 3)


async def test_two_workers_close_different_units_without_waiting(asked: Asked) -> None:
    one, other = await asked.join()
    first, item, _ = await large(asked, one)
    second, _, _ = await large_too(asked, one)
    await asked.flush(one, stopped(item))
    await cancel(asked, one, second)

    await one.begin()
    assert await await_units.clean_up(one) is not None  # type: ignore[arg-type]
    assert await cleaned(asked, other) == PAGES
    await one.commit()

    assert await open_questions(asked, second) == 0
    assert await cleaned(asked, other) == PAGES - 1
    assert await open_questions(asked, first) == 0


async def large_too(asked: Asked, by: Contestant) -> tuple[int, list[str], list[Claim]]:
    await asked.harness.engine.start(Asker, {})
    [claim] = [claim for claim in await asked.claim(by) if claim.step == "start"]
    await asked.fill(by, claim, each(), MANY)
    await asked.flush(by, asked.asks(claim, each()))
    return claim.id, [], []


async def test_pages_that_a_dead_worker_left_are_closed_by_another(asked: Asked) -> None:
    dying, other = await asked.join()
    parent, item, _ = await large(asked, dying)
    await asked.flush(dying, stopped(item))
    await await_units.clean_up(dying)  # type: ignore[arg-type]
    await dying.begin()
    await await_units.clean_up(dying)  # type: ignore[arg-type]

    dying.connection.terminate()

    pages = 0
    while await open_questions(asked, parent):  # the server rolls back the page of the dead worker when it notices
        pages += await cleaned(asked, other)
    assert pages == PAGES - 1
    assert await asked.problems() == []


async def test_interactions_that_a_killed_worker_left_open_are_closed_by_another(
    asked: Asked, start_worker: StartWorker
) -> None:
    [by] = await asked.join(1)
    parent, _, _ = await large(asked, by)
    await cancel(asked, by, parent)
    killed = await start_worker(asked.harness.url, crash="reconciler.cleaned")
    assert await killed.ended() == -signal.SIGKILL
    left = await open_questions(asked, parent)

    await start_worker(asked.harness.url)

    assert left == MANY - await_units.PAGE - 1  # one page was closed, and an item of another was completed
    await eventually(lambda: is_clean(asked))
    assert await open_questions(asked, parent) == 0


async def is_clean(asked: Asked) -> bool:
    return await asked.sql("select from stepwell.cleanups") == []


async def test_a_retry_asks_interactions_again_that_no_page_has_closed(asked: Asked) -> None:
    [by] = await asked.join(1)
    parent, item, waiting = await large(asked, by)
    await cancel(asked, by, parent)
    await await_units.clean_up(by)  # type: ignore[arg-type]

    await asked.operating(by).retry(parent, None, by=None, tenant=None)

    assert await cleaned(asked, by) == 0
    assert await counted(asked, parent) == ("waiting", 2, 2, "awaiting_external")
    assert await asked.row(waiting, "status") == "runnable"
    assert await asked.row(item.id, "status") in ("runnable", "executing")
    assert await asked.problems() == []


async def test_a_retry_waits_for_the_page_that_is_being_closed(asked: Asked) -> None:
    closing, retrying = await asked.join()
    parent, _, _ = await large(asked, closing)
    await cancel(asked, closing, parent)
    await closing.begin()
    await await_units.clean_up(closing)  # type: ignore[arg-type]

    retry = await asked.blocked(retrying, asked.operating(retrying).retry(parent, None, by=None, tenant=None))
    await closing.commit()
    await retry

    assert await cleaned(asked, closing) == 0
    assert await asked.problems() == []
    assert (await asked.unit(parent))[0] == "waiting"


async def test_items_of_a_large_unit_pass_on_the_slots_that_they_held(asked: Asked) -> None:
    [by] = await asked.join(1)
    _, item, waiting = await large(asked, by)
    [holder] = await asked.claim(by, 1)
    assert holder.id == waiting
    behind = (await asked.harness.engine.start(Asker, {})).id
    await limits.declare_missing(by, [ConcurrencyLimit("few", 1)])
    await asked.sql("update stepwell.instances set concurrency_limit = 'few' where id in ($1, $2)", waiting, behind)
    await asked.sql("update stepwell.instances set slot = 1 where id = $1", waiting)
    await asked.sql("update stepwell.instances set hold = 'limit' where id = $1", behind)

    await asked.flush(by, stopped(item))
    await cleaned(asked, by)

    assert await asked.row(waiting, "status") == "cancelled"
    assert await asked.row(behind, "hold") is None
    assert await asked.flush(by, done(holder)) == []


async def test_units_beyond_a_page_of_one_group_commit_are_closed_afterwards(asked: Asked) -> None:
    [by] = await asked.join(1)
    number, size = 8, 900
    claims = [await asked.claimed(by) for _ in range(number)]
    for claim in claims:
        await asked.fill(by, claim, each(), size)

    assert len(await asked.flush(by, *(replace(stopped(claim), has_filled=True) for claim in claims))) == number

    left = [await open_questions(asked, claim.id) for claim in claims]
    assert sorted(left) == [0] * 5 + [size] * 3
    assert await cleaned(asked, by) == 3
    assert await asked.problems() == []


async def test_a_pruned_large_unit_is_deleted_in_pages(asked: Asked) -> None:
    [by] = await asked.join(1)
    parent, _, waiting = await large(asked, by)
    await cancel(asked, by, parent)
    await asked.harness.advance(timedelta(days=2))
    await asked.sql("insert into stepwell.machines (name, version, initial, queue, steps, active) "
                    "values ('Asker', 1, 'start', 'default', '{start,collect}', true)")
    deleted, _ = await retention.prune(by)

    assert deleted >= 1
    assert await asked.sql("select from stepwell.instances where id = $1", parent) == []
    assert len(await asked.ids(parent)) == MANY
    assert await cleaned(asked, by) == PAGES
    assert await asked.ids(parent) == []
    assert await asked.sql("select from stepwell.await_units where instance_id = $1", parent) == []
    assert await asked.sql("select from stepwell.instances where id = $1 and status = 'runnable'", waiting) == []


@pytest.mark.parametrize("page", [1, 3, 7, 1_000])
@pytest.mark.parametrize("window", [None, 4, 20])
async def test_a_retry_asks_a_large_unit_again_in_pages(
    asked: Asked, page: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 10
    [by] = await asked.join(1)
    parent, _, [item, _] = await items(asked, by, 2, number, window=window or number, timeout=SOON, on_timeout="fail")
    if window is None:
        await asked.sql('update stepwell.await_units set "window" = null')
    await asked.flush(by, done(item))
    await cancel(asked, by, parent)
    monkeypatch.setattr(await_units, "PAGE", page)
    by.sent.clear()

    await asked.operating(by).retry(parent, None, by=None, tenant=None)

    pages = [rows[0] for rows in by.answers("await_units/reopen")]
    assert len(pages) == -(-number // page)
    assert sum(row["asked"] for row in pages) == number - 2
    assert max(row["asked"] + row["answered"] for row in pages) <= page
    out = min(window or number, number - 2)
    assert (await asked.statuses(parent)).count("queued") == number - 2 - out
    assert await counted(asked, parent) == ("waiting", 2, 1, "awaiting_external")
    [unit] = await asked.sql("select in_flight from stepwell.await_units")
    assert unit["in_flight"] == out
    if window is not None:
        assert await asked.problems() == []


async def test_a_cancel_of_a_large_tree_finds_the_items_below_it_in_pages(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    [by] = await asked.join(1)
    root = await asked.harness.engine.start(Asker, {})
    [claim] = await asked.claim(by)
    below = [await items(asked, by, 4, 4, window=4) for _ in range(2)]
    await asked.sql("update stepwell.instances set parent_id = $1, parent_round = 1, child_index = id "
                    "where continues_unit_id is null and id <> $1", root.id)
    assert claim.id == root.id
    monkeypatch.setattr(operators, "PAGE", 3)
    by.sent.clear()

    assert await cancel(asked, by, root.id)

    found = [rows for rows in by.answers("operators/find_items") if rows]
    assert (sum(map(len, found)), max(map(len, found))) == (8, 3)
    live = await asked.sql("select from stepwell.instances where status <> 'cancelled'")
    assert (live, len(below)) == ([], 2)
    assert await asked.problems() == []
