"""The end of a continuation against every other change of its unit, by two connections.

Numbers are those of the scenarios in the digest of the pipeline framework's await units.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from stepwell._core.instance import Claim
from stepwell._store import await_units
from stepwell.errors import InteractionClosed
from tests.support.asked import SOON, Asked, each
from tests.support.contest import Contestant, done, stopped

NO_LOCK = ("for no key update skip locked", "")


async def items(asked: Asked, by: Contestant, number: int, asks: int | None = None, **options: Any) -> Any:
    """An instance that has asked about some items, a number of which are completed and claimed by one worker each.

    Returns its id, the ids of its interactions, and the claims.
    """
    claim = await asked.claimed(by)
    outcome = replace(each(**options), item_step="collect")
    await asked.fill(by, claim, outcome, asks or number)
    await asked.flush(by, asked.asks(claim, outcome))
    ids = await asked.ids(claim.id)
    for id_ in ids[:number]:
        await asked.complete(by, id_)
    return claim.id, ids, [(await asked.claim(by, 1))[0] for _ in range(number)]


async def counted(asked: Asked, instance: int) -> tuple[Any, ...]:
    """The unit's status, how many are resolved, how many continue; and the status of the instance."""
    [row] = await asked.sql(
        "select u.status, u.resolved, u.continuing, i.status from stepwell.await_units u "
        "join stepwell.instances i on i.id = u.instance_id where i.id = $1", instance,
    )  # fmt: skip
    return tuple(row)


async def cancel(asked: Asked, by: Contestant, instance: int, *, cascade: bool = True) -> bool:
    return await asked.operating(by).cancel(instance, None, cascade=cascade, by=None, tenant=None)


async def test_the_last_two_items_that_end_at_once_release_their_parent_once(asked: Asked) -> None:
    """Scenario 41: two workers release at once, one advance is accepted."""
    one, other = await asked.join()
    parent, _, [first, last] = await items(asked, one, 2)
    await one.begin()
    assert await asked.flush(one, done(first)) == [first.id]

    assert await asked.flush(other, done(last)) == []  # the parent is locked: the end is retried
    assert not await asked.is_anybody_waiting()
    await one.commit()
    assert await counted(asked, parent) == ("waiting", 2, 1, "awaiting_external")

    assert await asked.flush(other, done(last)) == [last.id]
    assert await counted(asked, parent) == ("completed", 2, 0, "runnable")
    [claim] = await asked.claim(one)
    assert (claim.id, await asked.claim(other)) == (parent, [])


async def test_without_the_parents_lock_one_of_two_ends_of_items_would_be_lost(asked: Asked) -> None:
    one, other = await asked.join()
    other.change("children/lock_parents", NO_LOCK)
    parent, _, [first, last] = await items(asked, one, 2)
    await one.begin()
    await asked.flush(one, done(first))

    late = await asked.blocked(other, asked.flush(other, done(last)))
    await one.commit()
    await late

    assert await counted(asked, parent) == ("waiting", 2, 1, "awaiting_external")  # for ever
    await asked.sql("truncate stepwell.instances, stepwell.await_units, stepwell.interactions")


async def test_items_that_end_in_one_group_commit_are_all_counted(asked: Asked) -> None:
    [one] = await asked.join(1)
    parent, _, claims = await items(asked, one, 3)

    await asked.flush(one, *map(done, claims))

    assert await counted(asked, parent) == ("completed", 3, 0, "runnable")


async def test_one_item_that_fails_in_a_group_commit_fails_the_unit_in_any_order(asked: Asked) -> None:
    [one] = await asked.join(1)
    parent, _, [a, b, c] = await items(asked, one, 3)

    await asked.flush(one, done(a), stopped(b))

    assert await counted(asked, parent) == ("failed", 3, 0, "runnable")
    assert await asked.row(c.id, "status") == "cancelled"
    assert await asked.flush(one, done(c)) == []


@pytest.mark.parametrize("cascade", [True, False])
async def test_a_cancel_that_waits_for_a_completion_ends_its_continuation_too(
    asked: Asked, *, cascade: bool
) -> None:
    """The cancel had read what is below before the completion was committed."""
    answering, cancelling = await asked.join()
    parent, [_, question], [claim] = await items(asked, answering, 1, 2)
    await asked.flush(answering, done(claim))
    await answering.begin()
    await asked.complete(answering, question)

    cancelled = await asked.blocked(cancelling, cancel(asked, cancelling, parent, cascade=cascade))
    await answering.commit()

    assert await cancelled
    assert await counted(asked, parent) == ("cancelled", 2, 0, "cancelled")
    assert await asked.children(parent) == ["done", "cancelled"]
    assert await asked.claim(answering) == []


async def test_without_an_end_a_continuation_of_a_cancelled_parent_would_run(asked: Asked) -> None:
    answering, cancelling = await asked.join()
    cancelling.change("await_units/drop_items", ("i.continues_unit_id = u.id", "i.continues_unit_id = -u.id"))
    parent, [question], _ = await items(asked, answering, 0, 1)
    await answering.begin()
    await asked.complete(answering, question)

    cancelled = await asked.blocked(cancelling, cancel(asked, cancelling, parent, cascade=False))
    await answering.commit()
    await cancelled

    assert len(await asked.claim(answering)) == 1
    await asked.sql("truncate stepwell.instances, stepwell.await_units, stepwell.interactions")


async def test_a_completion_during_the_cancel_of_its_parent_starts_nothing(asked: Asked) -> None:
    cancelling, answering = await asked.join()
    parent, [question], _ = await items(asked, answering, 0, 1)
    await cancelling.begin()
    await cancel(asked, cancelling, parent)

    completing = await asked.blocked(answering, asked.complete(answering, question))
    await cancelling.commit()

    with pytest.raises(InteractionClosed):
        await completing
    assert await asked.children(parent) == []


async def test_a_timeout_that_fails_the_unit_beats_the_end_that_waits_for_it(asked: Asked) -> None:
    """Scenario 71, for the end of an item: one terminal state."""
    expiring, ending = await asked.join()
    parent, _, [claim] = await items(asked, ending, 1, 2, timeout=SOON, on_timeout="fail")
    await asked.harness.advance(SOON)
    await expiring.begin()
    assert await asked.expire(expiring) == (1, 0)

    assert await asked.flush(ending, done(claim)) == []
    await expiring.commit()

    assert await asked.flush(ending, done(claim)) == []  # its claim is gone
    assert await counted(asked, parent) == ("timed_out", 2, 0, "runnable")
    assert await asked.row(claim.id, "status") == "cancelled"


async def test_an_uncommitted_end_is_counted_before_the_timeout_that_skips_it(asked: Asked) -> None:
    ending, expiring = await asked.join()
    parent, _, [claim] = await items(asked, ending, 1, 2, timeout=SOON, on_timeout="fail")
    await asked.harness.advance(SOON)
    await ending.begin()
    assert await asked.flush(ending, done(claim)) == [claim.id]

    assert await asked.expire(expiring) == (1, 1)
    assert not await asked.is_anybody_waiting()
    await ending.commit()

    assert await asked.expire(expiring) == (1, 0)
    assert await counted(asked, parent) == ("timed_out", 2, 0, "runnable")
    assert await asked.row(claim.id, "status") == "done"


async def test_the_last_end_and_the_timeout_of_another_item_release_the_unit_once(asked: Asked) -> None:
    ending, expiring = await asked.join()
    parent, _, [claim] = await items(asked, ending, 1, 2, timeout=SOON, on_timeout="wake")
    await asked.harness.advance(SOON)
    await expiring.begin()
    assert await asked.expire(expiring) == (1, 0)
    assert await asked.flush(ending, done(claim)) == []
    await expiring.commit()
    assert await counted(asked, parent) == ("waiting", 2, 1, "awaiting_external")

    assert await asked.flush(ending, done(claim)) == [claim.id]

    assert await counted(asked, parent) == ("completed", 2, 0, "runnable")


async def test_an_item_of_a_worker_presumed_dead_is_not_ended_twice(asked: Asked) -> None:
    """Scenario 42: a terminal failed child is not overwritten."""
    reaping, ending = await asked.join()
    parent, _, [claim] = await items(asked, ending, 1)
    await asked.end_lease(claim)
    await reaping.begin()
    assert await asked.reap(reaping, [claim], max_crashes=1) == [claim.id]

    assert await asked.flush(ending, done(claim)) == []
    await reaping.commit()

    assert await asked.flush(ending, done(claim)) == []
    assert await asked.row(claim.id, "status") == "failed"
    assert await counted(asked, parent) == ("failed", 1, 0, "runnable")


async def test_an_item_that_ends_before_its_reap_is_left_alone(asked: Asked) -> None:
    ending, reaping = await asked.join()
    parent, _, [claim] = await items(asked, ending, 1)
    await asked.end_lease(claim)
    await ending.begin()
    assert await asked.flush(ending, done(claim)) == [claim.id]

    assert await asked.reap(reaping, [claim], max_crashes=1) == []
    assert not await asked.is_anybody_waiting()
    await ending.commit()

    assert await asked.reap(reaping, [claim], max_crashes=1) == []
    assert await counted(asked, parent) == ("completed", 1, 0, "runnable")


async def test_an_item_that_crashed_too_often_fails_after_anothers_end_commits(asked: Asked) -> None:
    """Both are counted: the reaper skips the locked row, and checks again."""
    ending, reaping = await asked.join()
    parent, _, [first, crashed] = await items(asked, ending, 2)
    await asked.end_lease(crashed)
    await ending.begin()
    assert await asked.flush(ending, done(first)) == [first.id]

    assert await asked.reap(reaping, [crashed], max_crashes=1) == []
    assert not await asked.is_anybody_waiting()
    await ending.commit()

    assert await asked.reap(reaping, [crashed], max_crashes=1) == [crashed.id]
    assert await counted(asked, parent) == ("failed", 2, 0, "runnable")


async def test_a_cancel_of_an_item_waits_for_its_end_and_changes_nothing(asked: Asked) -> None:
    ending, cancelling = await asked.join()
    parent, _, [claim] = await items(asked, ending, 1)
    await ending.begin()
    await asked.flush(ending, done(claim))

    cancelled = await asked.blocked(cancelling, cancel(asked, cancelling, claim.id))
    await ending.commit()

    assert not await cancelled
    assert await counted(asked, parent) == ("completed", 1, 0, "runnable")


async def test_an_item_that_is_being_claimed_while_its_unit_fails_is_not_counted(asked: Asked) -> None:
    """The failing item skips the locked one, and its end is not counted."""
    failing, claiming = await asked.join()
    parent, [*_, question], [claim] = await items(asked, failing, 1, 2)
    await asked.complete(failing, question)
    await claiming.begin()
    [other] = await asked.claim(claiming)

    assert await asked.flush(failing, stopped(claim)) == [claim.id]
    assert not await asked.is_anybody_waiting()
    await claiming.commit()
    assert await asked.flush(claiming, done(other)) == [other.id]

    assert await counted(asked, parent) == ("failed", 2, 0, "runnable")


async def test_an_item_that_was_skipped_counts_again_once_its_parent_is_retried(asked: Asked) -> None:
    failing, claiming = await asked.join()
    parent, [*_, question], [claim] = await items(asked, failing, 1, 2)
    await asked.complete(failing, question)
    await claiming.begin()
    [other] = await asked.claim(claiming)
    await asked.flush(failing, stopped(claim))
    await claiming.commit()
    [woken] = await asked.claim(failing)
    await asked.flush(failing, replace(stopped(woken), keeps_awaits=True))

    assert await asked.operating(failing).retry(parent, None, by=None, tenant=None)
    assert await counted(asked, parent) == ("waiting", 2, 2, "awaiting_external")
    await asked.flush(claiming, done(other))
    [again] = await asked.claim(failing)
    await asked.flush(failing, done(again))

    assert again.id == claim.id
    assert await counted(asked, parent) == ("completed", 2, 0, "runnable")


async def test_the_end_of_an_item_waits_for_no_callers_transaction(asked: Asked) -> None:
    """It does not wait for a lock on the parent, nor does it delay the ends of other items."""
    caller, ending = await asked.join()
    held, _, [mine] = await items(asked, ending, 1)
    free, _, [theirs] = await items(asked, ending, 1)
    await caller.begin()
    await caller.lock_row(held)

    assert await asked.flush(ending, done(mine), done(theirs)) == [theirs.id]
    assert not await asked.is_anybody_waiting()
    await caller.commit()

    assert await asked.flush(ending, done(mine)) == [mine.id]
    assert [(await counted(asked, id_))[0] for id_ in (held, free)] == ["completed"] * 2


async def test_a_check_for_damage_during_an_uncommitted_end_changes_nothing(asked: Asked) -> None:
    ending, looking = await asked.join()
    parent, _, [claim] = await items(asked, ending, 1)
    [row] = await asked.sql("select id from stepwell.await_units")
    await ending.begin()
    await asked.flush(ending, done(claim))

    mended = await await_units._repair(looking, [(parent, row["id"])])  # type: ignore[arg-type]
    await ending.commit()
    again = await await_units._repair(looking, [(parent, row["id"])])  # type: ignore[arg-type]

    assert mended[:3] == again[:3] == ([], [], [])
    assert await counted(asked, parent) == ("completed", 1, 0, "runnable")


async def test_a_concurrent_retry_of_the_parent_and_completion_both_count(asked: Asked) -> None:
    retrying, answering = await asked.join()
    parent, [_, question], _ = await items(asked, retrying, 1, 2)
    await cancel(asked, retrying, parent)
    await retrying.begin()
    await asked.operating(retrying).retry(parent, None, by=None, tenant=None)

    completing = await asked.blocked(answering, asked.complete(answering, question))
    await retrying.commit()

    assert not (await completing).is_duplicate
    assert await counted(asked, parent) == ("waiting", 2, 2, "awaiting_external")
    claims: list[Claim] = await asked.claim(answering)
    await asked.flush(answering, *map(done, claims))
    assert await counted(asked, parent) == ("completed", 2, 0, "runnable")
