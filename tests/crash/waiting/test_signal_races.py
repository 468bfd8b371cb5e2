"""Delivering against parking, finishing, timing out and delivering: a signal is never ok and lost."""

from __future__ import annotations

import pytest

from stepwell import NoTarget
from stepwell._store import instances, signals
from stepwell._store.signals import NewSignal
from tests.support.contest import Contest, Contestant, Plain, done, parked


def paid(target: int | str, dedup_key: str | None = None) -> NewSignal:
    """A signal "paid" to an id or a key."""
    id_, key = (target, None) if isinstance(target, int) else (None, target)
    return NewSignal(id=id_, tenant="", key=key, name="paid", payload="1", dedup_key=dedup_key)


EITHER_WAY = pytest.mark.parametrize("dedup_key", [None, "event"], ids=["the short way", "the long way"])


@EITHER_WAY
async def test_a_delivery_waits_for_a_park_under_way_and_wakes_it(contest: Contest, dedup_key: str | None) -> None:
    """Scenario 27."""
    parking, delivering = await contest.join()
    claim = await contest.executing(parking)
    await parking.begin()
    assert await contest.flush(parking, parked(claim, "paid")) == [claim.id]

    sending = contest.client(delivering).signal(claim.id, "paid", 1, dedup_key, None)
    delivery = await contest.blocked(delivering, sending)
    await parking.commit()
    await delivery

    assert await contest.row(claim.id, "status") == "runnable"
    assert await contest.inbox(claim.id) == [("paid", "1")]


async def test_judged_by_its_snapshot_a_plain_delivery_would_leave_the_park_asleep_with_its_signal(
    contest: Contest,
) -> None:
    parking, delivering = await contest.join()
    read = "(select s.status from stepwell.instances s where s.id = g.id)"
    delivering.change("signals/deliver_plain", ("when i.status = 'awaiting", f"when {read} = 'awaiting"))
    claim = await contest.executing(parking)
    await parking.begin()
    await contest.flush(parking, parked(claim, "paid"))

    delivery = await contest.blocked(delivering, signals.deliver(delivering, [paid(claim.id)]))
    await parking.commit()
    await delivery

    assert await contest.row(claim.id, "status") == "awaiting_signal"
    assert await contest.inbox(claim.id) == [("paid", "1")]


async def test_without_its_lock_a_delivery_would_miss_the_park_and_leave_it_asleep_with_its_signal(
    contest: Contest,
) -> None:
    parking, delivering = await contest.join()
    delivering.change(
        "signals/deliver",
        ("  for no key update\n", ""),
        ("  returning i.id, case", "    and i.status = 'awaiting_signal'\n  returning i.id, case"),
    )
    claim = await contest.executing(parking)
    await parking.begin()
    await contest.flush(parking, parked(claim, "paid"))

    await signals.deliver(delivering, [paid(claim.id, "event")])
    await parking.commit()

    assert await contest.row(claim.id, "status") == "awaiting_signal"
    assert await contest.inbox(claim.id) == [("paid", "1")]


async def test_a_park_does_not_wait_for_a_delivery_under_way_and_sees_it_when_it_comes_back(contest: Contest) -> None:
    """Scenario 27."""
    parking, delivering = await contest.join()
    claim = await contest.executing(parking)
    await delivering.begin()
    await contest.client(delivering).signal(claim.id, "paid", 1, None, None)

    assert await contest.flush(parking, parked(claim, "paid")) == []
    await delivering.commit()
    assert await contest.flush(parking, parked(claim, "paid")) == [claim.id]

    assert await contest.row(claim.id, "status") == "runnable"


async def test_without_the_recheck_a_park_would_sleep_on_a_signal_that_came_while_its_step_ran(
    contest: Contest,
) -> None:
    parking, delivering = await contest.join()
    parking.change("signals/recheck", ("and not s.consumed", "and false"))
    claim = await contest.executing(parking)
    await signals.deliver(delivering, [paid(claim.id)])

    await contest.flush(parking, parked(claim, "paid"))

    assert await contest.row(claim.id, "status") == "awaiting_signal"
    assert await contest.inbox(claim.id) == [("paid", "1")]


WATERMARK = ("not s.id = any (p.handed)", "s.id > (select max(h) from unnest(p.handed) as h)")


@pytest.mark.parametrize(
    ("changes", "status"),
    [([], "runnable"), ([WATERMARK], "awaiting_signal")],
    ids=["set of ids", "watermark"],
)
async def test_who_awaits_again_is_woken_by_a_lower_id_that_committed_later_thanks_to_the_set_of_handed_ids(
    contest: Contest, changes: list[tuple[str, str]], status: str
) -> None:
    parking, caller = await contest.join()
    parking.change("signals/recheck", *changes)
    claim = await contest.executing(parking)
    await caller.begin()
    low = await store_only(caller, claim.id)
    await signals.deliver(parking, [paid(claim.id)])
    handed = tuple(signal.id for signal in (await signals.load(parking, [claim.id]))[claim.id])
    assert len(handed) == 1
    assert low < handed[0]
    await caller.commit()

    await contest.flush(parking, parked(claim, "paid", handed=handed))

    assert await contest.row(claim.id, "status") == status


async def store_only(caller: Contestant, target: int) -> int:
    """Put a signal into an inbox as SQL of somebody else's might: without a lock on its target."""
    low: int = await caller.connection.fetchval(
        "insert into stepwell.signals (instance_id, sent_at, name) values ($1, now(), 'paid') returning id", target
    )
    await caller.connection.execute("update stepwell.signals set payload = '1' where id = $1", low)
    return low


@pytest.mark.parametrize(
    ("changes", "status"),
    [([], "awaiting_signal"), ([("and not s.id = any (p.handed)", "")], "runnable")],
    ids=["handed ids left out", "all ids"],
)
async def test_who_awaits_again_is_not_woken_by_what_it_was_handed(
    contest: Contest, changes: list[tuple[str, str]], status: str
) -> None:
    [parking] = await contest.join(1)
    parking.change("signals/recheck", *changes)
    claim = await contest.executing(parking)
    await signals.deliver(parking, [paid(claim.id)])
    handed = tuple(signal.id for signal in (await signals.load(parking, [claim.id]))[claim.id])

    await contest.flush(parking, parked(claim, "paid", handed=handed))

    assert await contest.row(claim.id, "status") == status




async def test_a_delivery_that_waited_for_its_targets_end_finds_no_target_and_stores_nothing(contest: Contest) -> None:
    finishing, delivering = await contest.join()
    claim = await contest.executing(finishing, key="k")
    await finishing.begin()
    await contest.flush(finishing, done(claim))

    delivery = await contest.blocked(delivering, contest.client(delivering).signal("k", "paid", 1, None, None))
    await finishing.commit()

    with pytest.raises(NoTarget):
        await delivery
    assert await contest.sql("select from stepwell.signals") == []


@pytest.mark.parametrize(
    ("changes", "stored"),
    [([], []), ([("select r.id, stepwell.now(), r.name, r.payload::jsonb\n  from reached r",
                  "select r.id, stepwell.now(), r.name, r.payload::jsonb\n  from given r")], [("paid", "1")])],
    ids=["stored for who was reached", "stored for who was meant"],
)  # fmt: skip
async def test_a_plain_delivery_that_waited_for_its_targets_end_stores_nothing_since_it_reached_nobody(
    contest: Contest, changes: list[tuple[str, str]], stored: list[tuple[str, str]]
) -> None:
    finishing, delivering = await contest.join()
    delivering.change("signals/deliver_plain", *changes)
    claim = await contest.executing(finishing)
    await finishing.begin()
    await contest.flush(finishing, done(claim))

    delivery = await contest.blocked(
        delivering, contest.client(delivering).signal_many([(claim.id, "paid", 1)])
    )
    await finishing.commit()
    [answer] = await delivery

    assert isinstance(answer, NoTarget)
    assert await contest.inbox(claim.id) == stored


async def test_without_its_lock_a_delivery_would_say_ok_and_lose_the_signal_on_a_dead_row(contest: Contest) -> None:
    finishing, delivering = await contest.join()
    delivering.change("signals/deliver", ("  for no key update\n", ""))
    claim = await contest.executing(finishing, key="k")
    await finishing.begin()
    await contest.flush(finishing, done(claim))

    delivery = await contest.blocked(delivering, contest.client(delivering).signal("k", "paid", 1, None, None))
    await finishing.commit()
    await delivery

    assert await contest.row(claim.id, "status") == "done"
    assert await contest.inbox(claim.id) == [("paid", "1")]


async def test_an_end_does_not_wait_for_a_delivery_under_way_which_reaches_who_still_lives(contest: Contest) -> None:
    finishing, delivering = await contest.join()
    claim = await contest.executing(finishing)
    await delivering.begin()
    await contest.client(delivering).signal(claim.id, "paid", 1, None, None)

    assert await contest.flush(finishing, done(claim)) == []
    await delivering.commit()
    assert await contest.inbox(claim.id) == [("paid", "1")]
    assert await contest.flush(finishing, done(claim)) == [claim.id]

    assert await contest.inbox(claim.id) == []  # an end drops what it left unread


async def test_a_delivery_that_waited_for_a_keys_holder_reaches_the_successor(contest: Contest) -> None:
    finishing, delivering = await contest.join()
    claim = await contest.executing(finishing, key="k")
    await finishing.begin()
    await contest.flush(finishing, done(claim))
    [successor] = await instances.start_keyed(finishing, contest.entries(Plain.child({}, key="k")))  # type: ignore[arg-type]

    delivery = await contest.blocked(delivering, contest.client(delivering).signal("k", "paid", 1, None, None))
    await finishing.commit()
    await delivery

    assert await contest.inbox(claim.id) == []
    assert await contest.inbox(successor.id) == [("paid", "1")]


async def test_a_single_look_at_the_key_would_have_told_no_target_although_the_successor_was_there(
    contest: Contest,
) -> None:
    finishing, delivering = await contest.join()
    claim = await contest.executing(finishing, key="k")
    await finishing.begin()
    await contest.flush(finishing, done(claim))
    await instances.start_keyed(finishing, contest.entries(Plain.child({}, key="k")))  # type: ignore[arg-type]

    look = await contest.blocked(delivering, signals.deliver(delivering, [paid("k")]))
    await finishing.commit()

    [delivery] = await look
    assert (delivery.target, delivery.is_orphaned) == (None, True)
