"""Deliveries against parks, ends, timeouts and deliveries: no signal is accepted and lost."""

from __future__ import annotations

import pytest

from stepwell import NoTarget
from stepwell._store import signals
from stepwell._store.operations import start
from stepwell._store.operations.deliver import NewSignal, deliver
from tests.support.contest import Contest, Contestant, Plain, done, parked


def paid(target: int | str, dedup_key: str | None = None) -> NewSignal:
    """A signal "paid" to an id or a key."""
    id_, key = (target, None) if isinstance(target, int) else (None, target)
    return NewSignal(id=id_, tenant=None if key is None else "", key=key, name="paid", payload="1", dedup_key=dedup_key)


EITHER_WAY = pytest.mark.parametrize("dedup_key", [None, "event"], ids=["the short way", "the long way"])


@EITHER_WAY
async def test_a_delivery_waits_for_an_uncommitted_park_and_wakes_the_instance(
    contest: Contest, dedup_key: str | None
) -> None:
    """Scenario 27."""
    parking, delivering = await contest.join()
    claim = await contest.executing(parking)
    await parking.begin()
    assert await contest.flush(parking, parked(claim, "paid")) == [claim.id]

    sending = contest.signalling(delivering).signal(claim.id, "paid", 1, dedup_key, None)
    delivery = await contest.blocked(delivering, sending)
    await parking.commit()
    await delivery

    assert await contest.row(claim.id, "status") == "runnable"
    assert await contest.inbox(claim.id) == [("paid", "1")]


async def test_by_its_snapshot_alone_a_fast_delivery_would_miss_the_park(
    contest: Contest,
) -> None:
    parking, delivering = await contest.join()
    read = "(select s.status from stepwell.instances s where s.id = g.id)"
    delivering.change("signals/deliver_fast", ("when i.status = 'awaiting", f"when {read} = 'awaiting"))
    claim = await contest.executing(parking)
    await parking.begin()
    await contest.flush(parking, parked(claim, "paid"))

    delivery = await contest.blocked(delivering, deliver(delivering, [paid(claim.id)]))
    await parking.commit()
    await delivery

    assert await contest.row(claim.id, "status") == "awaiting_signal"
    assert await contest.inbox(claim.id) == [("paid", "1")]


async def test_without_its_lock_a_delivery_would_miss_the_park(
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

    await deliver(delivering, [paid(claim.id, "event")])
    await parking.commit()

    assert await contest.row(claim.id, "status") == "awaiting_signal"
    assert await contest.inbox(claim.id) == [("paid", "1")]


async def test_a_park_does_not_wait_for_an_uncommitted_delivery_and_sees_it_later(contest: Contest) -> None:
    """Scenario 27."""
    parking, delivering = await contest.join()
    claim = await contest.executing(parking)
    await delivering.begin()
    await contest.signalling(delivering).signal(claim.id, "paid", 1, None, None)

    assert await contest.flush(parking, parked(claim, "paid")) == []
    await delivering.commit()
    assert await contest.flush(parking, parked(claim, "paid")) == [claim.id]

    assert await contest.row(claim.id, "status") == "runnable"


async def test_without_the_recheck_a_park_would_miss_a_signal_sent_during_its_step(
    contest: Contest,
) -> None:
    parking, delivering = await contest.join()
    parking.change("signals/recheck", ("and not s.consumed", "and false"))
    claim = await contest.executing(parking)
    await deliver(delivering, [paid(claim.id)])

    await contest.flush(parking, parked(claim, "paid"))

    assert await contest.row(claim.id, "status") == "awaiting_signal"
    assert await contest.inbox(claim.id) == [("paid", "1")]


WATERMARK = ("not s.id = any (p.handed)", "s.id > (select max(h) from unnest(p.handed) as h)")


@pytest.mark.parametrize(
    ("changes", "status"),
    [([], "runnable"), ([WATERMARK], "awaiting_signal")],
    ids=["set of ids", "watermark"],
)
async def test_a_signal_with_a_lower_id_that_committed_later_wakes_the_next_await(
    contest: Contest, changes: list[tuple[str, str]], status: str
) -> None:
    parking, caller = await contest.join()
    parking.change("signals/recheck", *changes)
    claim = await contest.executing(parking)
    await caller.begin()
    low = await store_only(caller, claim.id)
    await deliver(parking, [paid(claim.id)])
    handed = tuple(signal.id for signal in (await signals.load(parking, [claim.id]))[claim.id])
    assert len(handed) == 1
    assert low < handed[0]
    await caller.commit()

    await contest.flush(parking, parked(claim, "paid", handed=handed))

    assert await contest.row(claim.id, "status") == status


async def store_only(caller: Contestant, target: int) -> int:
    """Insert a signal as foreign SQL might: without a lock on its target."""
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
async def test_a_signal_that_the_step_has_seen_does_not_wake_its_next_await(
    contest: Contest, changes: list[tuple[str, str]], status: str
) -> None:
    [parking] = await contest.join(1)
    parking.change("signals/recheck", *changes)
    claim = await contest.executing(parking)
    await deliver(parking, [paid(claim.id)])
    handed = tuple(signal.id for signal in (await signals.load(parking, [claim.id]))[claim.id])

    await contest.flush(parking, parked(claim, "paid", handed=handed))

    assert await contest.row(claim.id, "status") == status




async def test_a_delivery_that_waited_for_its_targets_end_stores_nothing(contest: Contest) -> None:
    finishing, delivering = await contest.join()
    claim = await contest.executing(finishing, key="k")
    await finishing.begin()
    await contest.flush(finishing, done(claim))

    delivery = await contest.blocked(delivering, contest.signalling(delivering).signal("k", "paid", 1, None, None))
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
async def test_a_fast_delivery_that_waited_for_its_targets_end_stores_nothing(
    contest: Contest, changes: list[tuple[str, str]], stored: list[tuple[str, str]]
) -> None:
    finishing, delivering = await contest.join()
    delivering.change("signals/deliver_fast", *changes)
    claim = await contest.executing(finishing)
    await finishing.begin()
    await contest.flush(finishing, done(claim))

    delivery = await contest.blocked(
        delivering, contest.signalling(delivering).signal_many([(claim.id, "paid", 1)])
    )
    await finishing.commit()
    [answer] = await delivery

    assert isinstance(answer, NoTarget)
    assert await contest.inbox(claim.id) == stored


async def test_without_its_lock_a_delivery_would_lose_the_signal_on_an_ended_row(contest: Contest) -> None:
    finishing, delivering = await contest.join()
    delivering.change("signals/deliver", ("  for no key update\n", ""))
    claim = await contest.executing(finishing, key="k")
    await finishing.begin()
    await contest.flush(finishing, done(claim))

    delivery = await contest.blocked(delivering, contest.signalling(delivering).signal("k", "paid", 1, None, None))
    await finishing.commit()
    await delivery

    assert await contest.row(claim.id, "status") == "done"
    assert await contest.inbox(claim.id) == [("paid", "1")]


async def test_an_end_does_not_wait_for_an_uncommitted_delivery(contest: Contest) -> None:
    """The delivery then reaches only instances that are still live."""
    finishing, delivering = await contest.join()
    claim = await contest.executing(finishing)
    await delivering.begin()
    await contest.signalling(delivering).signal(claim.id, "paid", 1, None, None)

    assert await contest.flush(finishing, done(claim)) == []
    await delivering.commit()
    assert await contest.inbox(claim.id) == [("paid", "1")]
    assert await contest.flush(finishing, done(claim)) == [claim.id]

    assert await contest.inbox(claim.id) == []  # an end drops unread signals


async def test_a_delivery_that_waited_for_a_keys_holder_reaches_its_successor(contest: Contest) -> None:
    finishing, delivering = await contest.join()
    claim = await contest.executing(finishing, key="k")
    await finishing.begin()
    await contest.flush(finishing, done(claim))
    [successor] = await start.start(finishing, contest.entries(Plain.child({}, key="k")))  # type: ignore[arg-type]

    delivery = await contest.blocked(delivering, contest.signalling(delivering).signal("k", "paid", 1, None, None))
    await finishing.commit()
    await delivery

    assert await contest.inbox(claim.id) == []
    assert await contest.inbox(successor.id) == [("paid", "1")]


async def test_with_a_single_read_of_the_key_a_delivery_would_miss_the_successor(
    contest: Contest,
) -> None:
    finishing, delivering = await contest.join()
    claim = await contest.executing(finishing, key="k")
    await finishing.begin()
    await contest.flush(finishing, done(claim))
    await start.start(finishing, contest.entries(Plain.child({}, key="k")))  # type: ignore[arg-type]

    look = await contest.blocked(delivering, deliver(delivering, [paid("k")]))
    await finishing.commit()

    [delivery] = await look
    assert (delivery.target, delivery.is_orphaned) == (None, True)
