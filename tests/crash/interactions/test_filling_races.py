"""A unit that is being filled, chunk by chunk, against timeouts, cancels, completions and its own crash."""

from __future__ import annotations

import pytest

from stepwell._core.instance import Claim
from stepwell.errors import InteractionClosed
from tests.support.asked import SOON, Asked, each
from tests.support.contest import Contestant, done

FAILS = each(timeout=SOON, on_timeout="fail", window=2)


async def test_a_timeout_before_the_unit_is_full_ends_the_filling(asked: Asked) -> None:
    """Digest, gap 2."""
    filling, expiring = await asked.join()
    claim = await asked.claimed(filling)
    await asked.fill(filling, claim, FAILS, 3)
    [first, *_] = await asked.ids(claim.id)
    await asked.harness.advance(SOON)
    assert await asked.expire(expiring) == (2, 0)

    appended = await asked.fill(filling, claim, FAILS, 3, first=3)

    assert appended is not None
    assert appended.timed_out == first
    assert await asked.statuses(claim.id) == ["timed_out", "timed_out", "cancelled"]


async def test_a_chunk_that_waited_for_a_timeout_sees_its_effect(asked: Asked) -> None:
    """It locks the instance by a statement with a snapshot older than the end of the unit."""
    expiring, filling = await asked.join()
    claim = await asked.claimed(filling)
    await asked.fill(filling, claim, FAILS, 3)
    await asked.harness.advance(SOON)
    await expiring.begin()
    await asked.expire(expiring)

    appending = await asked.blocked(filling, asked.fill(filling, claim, FAILS, 3, first=3))
    await expiring.commit()

    assert (await appending).timed_out is not None
    assert len(await asked.ids(claim.id)) == 3


async def test_without_a_check_of_its_unit_a_chunk_would_fill_an_ended_unit(asked: Asked) -> None:
    expiring, filling = await asked.join()
    filling.change("await_units/append", ("coalesce(u.status, 'waiting') = 'waiting' as is_open", "true as is_open"))
    claim = await asked.claimed(filling)
    await asked.fill(filling, claim, FAILS, 3)
    await asked.harness.advance(SOON)
    await asked.expire(expiring)

    await asked.fill(filling, claim, FAILS, 3, first=3)

    assert "queued" in await asked.statuses(claim.id)
    assert any("has open questions" in problem for problem in await asked.problems())
    await asked.sql("truncate stepwell.instances, stepwell.await_units, stepwell.interactions")


async def test_a_timeout_after_the_last_chunk_wakes_the_instance_when_it_parks(asked: Asked) -> None:
    """Digest, gap 2."""
    filling, expiring = await asked.join()
    claim = await asked.claimed(filling)
    await asked.fill(filling, claim, FAILS, 3)
    await asked.harness.advance(SOON)
    await asked.expire(expiring)

    await asked.flush(filling, asked.asks(claim, FAILS))

    assert await asked.row(claim.id, "status", "step") == ("runnable", "collect")
    [unit] = await asked.sql("select status, is_filled from stepwell.await_units")
    assert tuple(unit) == ("timed_out", True)


async def test_without_that_wake_the_instance_would_wait_for_an_ended_unit(asked: Asked) -> None:
    filling, expiring = await asked.join()
    filling.change("await_units/settle", ("or g.is_filled", ""))
    claim = await asked.claimed(filling)
    await asked.fill(filling, claim, FAILS, 3)
    await asked.harness.advance(SOON)
    await asked.expire(expiring)

    await asked.flush(filling, asked.asks(claim, FAILS))

    assert await asked.row(claim.id, "status") == "awaiting_external"
    await asked.sql("truncate stepwell.instances, stepwell.await_units, stepwell.interactions")


async def test_a_park_during_a_timeout_leaves_its_batch_and_wakes_when_retried(asked: Asked) -> None:
    expiring, filling = await asked.join()
    claim = await asked.claimed(filling)
    await asked.fill(filling, claim, FAILS, 3)
    await asked.harness.advance(SOON)
    await expiring.begin()
    await asked.expire(expiring)

    assert await asked.flush(filling, asked.asks(claim, FAILS)) == []
    await expiring.commit()

    assert await asked.flush(filling, asked.asks(claim, FAILS)) == [claim.id]
    assert await asked.row(claim.id, "status") == "runnable"


async def test_a_timeout_waits_for_an_uncommitted_park_and_wakes_the_instance(asked: Asked) -> None:
    filling, expiring = await asked.join()
    claim = await asked.claimed(filling)
    await asked.fill(filling, claim, FAILS, 3)
    await asked.harness.advance(SOON)
    await filling.begin()
    await asked.flush(filling, asked.asks(claim, FAILS))

    assert await asked.expire(expiring) == (2, 2)
    await filling.commit()

    assert await asked.expire(expiring) == (2, 0)
    assert await asked.row(claim.id, "status") == "runnable"


async def test_a_timeout_waits_for_an_uncommitted_chunk_and_opens_the_next_items(asked: Asked) -> None:
    filling, expiring = await asked.join()
    claim = await asked.claimed(filling)
    wakes = each(timeout=SOON, window=2)
    await asked.fill(filling, claim, wakes, 2)
    await asked.harness.advance(SOON)
    await filling.begin()
    await asked.fill(filling, claim, wakes, 3, first=2)

    assert await asked.expire(expiring) == (2, 2)
    assert not await asked.is_anybody_waiting()
    await filling.commit()
    assert await asked.expire(expiring) == (2, 0)

    assert await asked.unit(claim.id) == ("waiting", 5, 2, 2)
    assert await asked.statuses(claim.id) == ["timed_out"] * 2 + ["dispatched"] * 2 + ["queued"]


async def test_a_cancel_waits_for_an_uncommitted_chunk_and_closes_it(asked: Asked) -> None:
    filling, cancelling = await asked.join()
    claim = await asked.claimed(filling)
    await filling.begin()
    await asked.fill(filling, claim, each(window=1), 3)

    cancel = await asked.blocked(cancelling, cancel_of(asked, cancelling, claim))
    await filling.commit()
    await cancel

    assert await asked.row(claim.id, "status", "filling_unit_id") == ("cancelled", None)
    assert await asked.statuses(claim.id) == ["cancelled"] * 3
    assert await asked.fill(filling, claim, each(), 3, first=3) is None
    assert await asked.flush(filling, asked.asks(claim, each())) == []


async def test_a_chunk_during_a_cancel_inserts_no_interaction(asked: Asked) -> None:
    cancelling, filling = await asked.join()
    claim = await asked.claimed(filling)
    await asked.fill(filling, claim, each(), 1)
    await cancelling.begin()
    await cancel_of(asked, cancelling, claim)

    appending = await asked.blocked(filling, asked.fill(filling, claim, each(), 1, first=1))
    await cancelling.commit()

    assert await appending is None
    assert await asked.statuses(claim.id) == ["cancelled"]


async def cancel_of(asked: Asked, by: Contestant, claim: Claim) -> bool:
    return await asked.operating(by).cancel(claim.id, None, cascade=True, by=None, tenant=None)


async def test_a_reaped_claim_stops_filling_and_the_next_claim_continues(asked: Asked) -> None:
    """Digest, gap 16: item i is asked about once, whatever the second run returns for it."""
    dead, alive = await asked.join()
    claim = await asked.claimed(dead)
    await asked.fill(dead, claim, each(), 2)
    asked_before = await asked.ids(claim.id)
    await asked.end_lease(claim)
    await asked.reap(alive, [claim])
    [again] = await asked.claim(alive)

    assert await asked.fill(dead, claim, each(), 2, first=2) is None
    await asked.fill(alive, again, each(), 4)

    assert (await asked.ids(claim.id))[:2] == asked_before
    assert await asked.unit(claim.id) == ("waiting", 4, 0, 4)


async def test_a_chunk_with_a_lost_reply_is_not_inserted_twice(asked: Asked) -> None:
    [filling] = await asked.join(1)
    claim = await asked.claimed(filling)
    await asked.fill(filling, claim, each(window=3), 2)

    await asked.fill(filling, claim, each(window=3), 4)
    await asked.fill(filling, claim, each(window=3), 4)

    assert await asked.unit(claim.id) == ("waiting", 4, 0, 3)
    assert await asked.statuses(claim.id) == ["dispatched"] * 3 + ["queued"]


async def test_a_second_run_with_another_window_keeps_the_first_one(asked: Asked) -> None:
    [filling] = await asked.join(1)
    claim = await asked.claimed(filling)
    await asked.fill(filling, claim, each(window=2), 3)

    await asked.fill(filling, claim, each(window=50), 5)

    assert await asked.unit(claim.id) == ("waiting", 5, 0, 2)


async def test_a_completion_waits_for_an_uncommitted_chunk_and_refills_the_window(asked: Asked) -> None:
    filling, answering = await asked.join()
    claim = await asked.claimed(filling)
    await asked.fill(filling, claim, each(window=1), 1)
    [first] = await asked.ids(claim.id)
    await filling.begin()
    await asked.fill(filling, claim, each(window=1), 2, first=1)

    completing = await asked.blocked(answering, asked.complete(answering, first))
    await filling.commit()
    await completing

    assert await asked.unit(claim.id) == ("waiting", 3, 1, 1)
    assert await asked.statuses(claim.id) == ["completed", "dispatched", "queued"]


async def test_a_chunk_waits_for_an_uncommitted_completion_and_finds_room(asked: Asked) -> None:
    answering, filling = await asked.join()
    claim = await asked.claimed(filling)
    await asked.fill(filling, claim, each(window=1), 1)
    [first] = await asked.ids(claim.id)
    await answering.begin()
    await asked.complete(answering, first)

    appending = await asked.blocked(filling, asked.fill(filling, claim, each(window=1), 2, first=1))
    await answering.commit()
    await appending

    assert await asked.unit(claim.id) == ("waiting", 3, 1, 1)
    assert await asked.statuses(claim.id) == ["completed", "dispatched", "queued"]


@pytest.mark.parametrize("crashes", [1, 2])
async def test_an_instance_that_crashed_too_often_while_filling_leaves_none_open(asked: Asked, crashes: int) -> None:
    dead, alive = await asked.join()
    claim = await asked.claimed(dead)
    await asked.fill(dead, claim, each(), 2)
    [first, _] = await asked.ids(claim.id)
    for _ in range(crashes):
        await asked.end_lease(claim)
        await asked.reap(alive, [claim], max_crashes=crashes)
        claim = next(iter(await asked.claim(alive)), claim)

    assert await asked.row(claim.id, "status") == "failed"
    assert await asked.statuses(claim.id) == ["cancelled"] * 2
    with pytest.raises(InteractionClosed):
        await asked.complete(alive, first)


async def test_a_second_run_that_does_not_ask_abandons_the_firsts_interactions(asked: Asked) -> None:
    dead, alive = await asked.join()
    claim = await asked.claimed(dead)
    await asked.fill(dead, claim, each(), 2)
    await asked.end_lease(claim)
    await asked.reap(alive, [claim])
    [again] = await asked.claim(alive)

    await asked.flush(alive, done(again))

    assert await asked.row(claim.id, "status") == "done"
    assert await asked.statuses(claim.id) == ["cancelled"] * 2
