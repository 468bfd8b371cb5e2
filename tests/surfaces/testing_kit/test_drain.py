"""`h.drain`: runs what may run, one at a time, and reports what it did."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, HarnessError, Machine, Status, step
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.surfaces.testing_kit.machines import Broken, Endless, Family, Greeting, Noting, Parking, send_mail


async def test_a_drain_reports_every_step_and_skips_backoffs(
    make_harness: MakeHarness,
) -> None:
    """Scenario 165."""
    h = await make_harness([Family, Greeting, Broken])
    family = await h.engine.start(Family)
    await h.engine.start(Broken)

    tally = await h.drain(with_scheduled=True)

    await h.assert_done(family, 2)
    assert tally.steps == {
        "Family.start": 1, "Family.grow": 1, "Family.try_": 3, "Greeting.start": 2, "Broken.start": 1
    }  # fmt: skip
    assert tally.outcomes == {"next": 1, "spawn": 1, "retry": 2, "done": 3, "stop": 1}
    assert tally.ended == {Status.DONE: 3, Status.FAILED: 1}
    assert (tally.total, tally.retries, tally.crashes) == (8, 2, 0)
    assert str(tally).splitlines()[0] == "8 steps: 3 done, 1 next, 2 retry, 1 spawn, 1 stop"


async def test_a_drain_of_one_queue_leaves_other_queues_and_rows_due_later(make_harness: MakeHarness) -> None:
    """Scenario 166."""
    h = await make_harness([Greeting, send_mail])
    mail = await h.engine.start(send_mail, {"to": "a"})
    later = await h.engine.start(send_mail, {"to": "b"}, delay=timedelta(hours=1))
    greeting = await h.engine.start(Greeting)

    tally = await h.drain(queues="mail")

    assert tally.steps.total() == 1
    await h.assert_done(mail, "sent to a")
    await h.assert_waiting(later, for_="time")
    assert (await greeting.get()).status is Status.RUNNABLE


async def test_a_machine_that_never_ends_is_an_error_with_its_last_steps(make_harness: MakeHarness) -> None:
    """Scenario 167."""
    h = await make_harness([Endless])
    await h.engine.start(Endless)

    with pytest.raises(HarnessError) as error:
        await h.drain(max_steps=7)

    assert "max_steps=7" in str(error.value)
    assert "Endless.round #1 would run next" in str(error.value)
    assert "#1 Endless.round → next start\n  #1 Endless.start → next round" in str(error.value)


async def test_one_drain_runs_all_queues_and_all_rows_behind_one_key(make_harness: MakeHarness) -> None:
    """Scenario 168, with the concurrency key; limits are tested elsewhere."""
    h = await make_harness([Greeting, send_mail])
    for number in range(5):
        await h.engine.start(Greeting, concurrency_key="one", queue=f"q{number % 2}")
    await h.engine.start(send_mail, {"to": "a"})

    tally = await h.drain()

    assert tally.ended == {Status.DONE: 6}
    assert str(await h.drain()) == "nothing ran"


async def test_a_drain_runs_one_step_at_a_time_most_urgent_first_across_queues(make_harness: MakeHarness) -> None:
    ran: list[str] = []
    h = await make_harness([Noting], resources=ran)
    await h.engine.start(Noting, key="c", priority=5, queue="a")
    await h.engine.start(Noting, key="b", priority=1, queue="z")
    await h.engine.start(Noting, key="d", priority=5, queue="m")
    await h.engine.start(Noting, key="a", priority=0, queue="q")

    await h.drain()

    assert ran == ["a", "b", "c", "d"]


async def test_a_parked_instance_stays_parked_until_its_signal_or_deadline(make_harness: MakeHarness) -> None:
    h = await make_harness([Parking])
    told, forgotten = await h.engine.start(Parking), await h.engine.start(Parking)
    await h.drain(with_scheduled=True)
    await h.assert_waiting(told, for_="word")

    await told.signal("word", "hi")
    await h.drain()
    await h.assert_waiting(forgotten)
    fired = await h.fire_timeouts()
    await h.drain()

    assert fired == 1
    await h.assert_done(told, ["hi"])
    await h.assert_done(forgotten, [])


async def test_steps_that_wait_for_one_another_need_room_and_a_drain_reports_it(make_harness: MakeHarness) -> None:
    class Asking(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            greeting = await ctx.resources[0].engine.start(Greeting)
            return Done(await greeting.result(timeout=10))

    harness: list[Harness] = []
    h = await make_harness([Asking, Greeting], resources=harness)
    harness.append(h)
    stuck = await h.engine.start(Asking)

    with pytest.raises(HarnessError, match=r"Asking.start #1 has not returned for 0.2 s.*concurrency=10"):
        await h.drain(timeout=0.2)
    await h.engine.cancel(stuck.id)
    asking = await h.engine.start(Asking)
    await h.drain(concurrency=2)

    await h.assert_done(asking, "hello")


async def test_a_drain_beside_a_worker_or_another_drain_is_refused(make_harness: MakeHarness) -> None:
    h = await make_harness([Greeting])

    async with h.engine.worker():
        with pytest.raises(HarnessError, match=r"drain while worker \d+ \(pid \d+\) runs on the same database"):
            await h.drain()
    await h.engine.start(Greeting)
    first = asyncio.create_task(h.drain())
    await asyncio.sleep(0)
    with pytest.raises(HarnessError, match="a drain of this harness runs already"):
        await h.drain()

    assert (await first).total == 1


async def test_a_drain_names_a_row_that_the_test_has_locked(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.testing.drain.MOST_FRUITLESS", 3)
    h = await make_harness([Greeting])
    greeting = await h.engine.start(Greeting)

    async with h.engine._opened.transaction() as session:
        await session.run("select from stepwell.instances for update")
        with pytest.raises(HarnessError, match=r"Greeting.start #1 may run and cannot be claimed"):
            await h.drain()
    await h.drain()

    await h.assert_done(greeting)


async def test_a_lifespan_of_resources_lasts_as_long_as_each_worker(make_harness: MakeHarness) -> None:
    h = await make_harness([Noting])
    notes: list[str] = []
    h.resources = notes
    await h.engine.start(Noting, key="a")

    await h.drain()

    assert notes == ["a"]
