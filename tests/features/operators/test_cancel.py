"""Rule 31: cancel ends an instance that waits or may run; the instance shows who did it and why."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from stepwell import Hold, InstanceCancelled, InvalidInput, NoTarget, Status
from tests.conftest import MakeHarness
from tests.features.signals.looks import count, inbox, operated
from tests.features.signals.machines import Gated, Gates, Item, Waiter
from tests.support.waiting import held


async def test_rule_31_a_parked_instance_is_cancelled(make_harness: MakeHarness) -> None:
    """Rule 31: parked: cancelled at once, deadline and key free; a signal finds no target; the inbox stays, closed."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter, key="order:42")
    async with h.engine.worker():
        await waiter.wait(30, until="settled")
    await waiter.signal("other", 1)

    cancelled = await waiter.cancel(reason="customer left", by="ann")
    ended = await waiter.get()
    again = await h.engine.start(Waiter, key="order:42")

    assert (cancelled, ended.status, ended.awaits) == (True, Status.CANCELLED, ("go",))
    assert ended.finished_at is not None
    assert again.id != waiter.id
    with pytest.raises(NoTarget):
        await waiter.signal("go")
    assert await inbox(h, waiter.id) == [("other", False)]


async def test_rule_31_a_runnable_instance_is_cancelled_and_never_runs(make_harness: MakeHarness) -> None:
    """Rule 31: runnable: no worker claims it any more."""
    gates = Gates()
    h = await make_harness([Gated], resources=gates)
    first, second = [await h.engine.start(Gated, step="quick") for _ in range(2)]

    assert await first.cancel()
    async with h.engine.worker():
        await second.result(30)
        ended = await first.wait(30)

    assert (ended.status, ended.attempt, gates.runs) == (Status.CANCELLED, 0, ["quick"])


async def test_rule_31_a_delayed_instance_is_cancelled(make_harness: MakeHarness) -> None:
    """Rule 31: held until its due time: cancelled, and its due time has no effect."""
    h = await make_harness([Gated], resources=Gates())
    later = await h.engine.start(Gated, step="quick", delay=timedelta(hours=1))

    await later.cancel()
    await h.advance(timedelta(hours=2))
    async with h.engine.worker():
        ended = await later.wait(30)

    assert (ended.status, ended.hold) == (Status.CANCELLED, None)


async def test_rule_31_an_instance_behind_a_busy_key_is_cancelled(make_harness: MakeHarness) -> None:
    """Rule 31: held behind a concurrency key: cancelled, and the next one behind the key has its turn."""
    gates = Gates()
    h = await make_harness([Gated], resources=gates)
    holder = await h.engine.start(Gated, concurrency_key="k")

    async with h.engine.worker():
        await gates.entered.wait()
        behind, last = [await h.engine.start(Gated, step="quick", concurrency_key="k") for _ in range(2)]
        waiting = await held(behind)
        await held(last)
        await behind.cancel()
        gates.open.set()
        results = [await holder.result(30), await last.result(30)]
        ended = await behind.wait(30)

    assert (waiting.hold, ended.status, results) == (Hold.KEY, Status.CANCELLED, ["passed", "quick"])


async def test_rule_31_a_cancelled_instance_shows_reason_and_operator(make_harness: MakeHarness) -> None:
    """Rule 31: result() raises InstanceCancelled with the reason; who and why is recorded."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)

    await h.engine.cancel(waiter.id, reason="customer left", by="ann")
    with pytest.raises(InstanceCancelled) as caught:
        await waiter.result(30)
    note = await operated(h, waiter.id)
    error = (await waiter.get()).error

    assert (caught.value.id, caught.value.machine, caught.value.reason) == (waiter.id, "Waiter", "customer left")
    assert str(caught.value) == f"Waiter #{waiter.id} was cancelled: customer left"
    assert (note["act"], note["by"], note["reason"]) == ("cancel", "ann", "customer left")
    assert "at" in note
    assert error is not None
    assert (error.type, error.message, error.traceback) == ("Cancelled", "customer left", None)


async def test_rule_31_a_cancel_without_a_reason_has_a_default_message(make_harness: MakeHarness) -> None:
    """Rule 31: neither reason nor name is needed."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)

    await waiter.cancel()
    with pytest.raises(InstanceCancelled, match="was cancelled: cancelled"):
        await waiter.result(30)
    note = await operated(h, waiter.id)

    assert (note["by"], note["act"]) == (None, "cancel")


async def test_rule_31_cancelling_an_ended_instance_changes_nothing(make_harness: MakeHarness) -> None:
    """Rule 31: done, failed or cancelled before: False, and everything as it was."""
    h = await make_harness([Item])
    ends = [await h.engine.start(Item, {"number": 1, "ends": e}) for e in ("done", "failed", "parked")]
    async with h.engine.worker():
        await ends[2].wait(30, until="settled")
        await ends[2].cancel(reason="first")
        before = [await end.wait(30) for end in ends]

    changed = [await end.cancel(reason="second", by="bob") for end in ends]
    after = [await end.get() for end in ends]

    assert changed == [False] * 3
    assert after == before


async def test_rule_31_a_waiting_client_is_told_of_the_cancel(make_harness: MakeHarness) -> None:
    """Rule 31: a client that waits for the end is notified, here and from another engine."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)

    async with h.another_engine() as other:
        waiting = [asyncio.create_task(engine.wait(waiter.id, timeout=30)) for engine in (h.engine, other)]
        await h.engine.cancel(waiter.id)
        ended = await asyncio.gather(*waiting)

    assert [one.status for one in ended] == [Status.CANCELLED] * 2


async def test_rule_31_one_of_ten_concurrent_cancels_takes_effect(make_harness: MakeHarness) -> None:
    """Rule 31: exactly one of many returns True."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)

    changed = await asyncio.gather(*(waiter.cancel(reason=str(n)) for n in range(10)))

    assert sorted(changed) == [False] * 9 + [True]


async def test_rule_31_an_invalid_reason_is_refused_and_nothing_is_cancelled(make_harness: MakeHarness) -> None:
    """Rule 31: reason and by are text; NUL and other types are refused."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)

    for bad in (5, b"x", "a\x00", "\ud800", ["x"]):
        for field in ("reason", "by"):
            for call in (h.engine.cancel, h.engine.retry):
                with pytest.raises(InvalidInput) as caught:
                    await call(waiter.id, **{field: bad})  # type: ignore[arg-type]
                assert caught.value.field == field
            with pytest.raises(InvalidInput):
                await h.engine.restart(waiter.id, step="wait", **{field: bad})  # type: ignore[arg-type]

    assert (await waiter.get()).status is Status.RUNNABLE
    assert await count(h, "instances") == 1
