"""Rules 17 and 32: a delayed row fires without a poll, by the database's clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from stepwell import Context, Done, Machine, Next, Retry, Status, step
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually, held

NO_POLL = {"poll": timedelta(seconds=60), "max_poll": timedelta(seconds=60)}
SOON = timedelta(milliseconds=120)


class Timed(Machine):
    """Is done with how late it runs, in seconds, by the database's clock.

    The time of its claim would not do: that is when the claim's transaction began, and another one may have let the
    row come due between that moment and the claim's look at it.
    """

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done(await self.lateness(ctx))

    @step
    async def later(self, ctx: Context[Any]) -> Next:
        return Next(self.start, delay=SOON)

    @step
    async def again(self, ctx: Context[Any]) -> Retry | Done:
        return Retry(SOON) if ctx.attempt == 0 else Done(await self.lateness(ctx))

    async def lateness(self, ctx: Context[Any]) -> float:
        harness: Harness = ctx.resources[0]
        late = "select extract(epoch from stepwell.now() - due_at)::float8 from stepwell.instances where id = $1"
        [[seconds]] = await harness.sql(late, ctx.id)
        return float(seconds)


async def harness_with_itself(make_harness: MakeHarness, **settings: Any) -> Harness:
    resources: list[Harness] = []
    harness = await make_harness([Timed], resources=resources, **settings)
    resources.append(harness)
    return harness


async def fired(harness: Harness, **start: Any) -> float:
    """Start while a worker is idle, and return how late the delayed step was."""
    async with harness.engine.worker():
        handle = await harness.engine.start(Timed, **start)
        late: float = await handle.result(timeout=30)
    print(f"fired {late * 1000:.1f} ms after it was due")  # noqa: T201 - a figure to look at, not a promise to assert
    return late


async def test_rule_17_a_delayed_start_fires_without_any_poll(make_harness: MakeHarness) -> None:
    """Rule 17: delays fire at their time on an otherwise idle engine; only the timer can have done it. Scenario 80."""
    h = await harness_with_itself(make_harness, **NO_POLL)

    assert await fired(h, delay=SOON) >= 0


async def test_rule_17_a_start_at_a_time_fires_without_any_poll(make_harness: MakeHarness) -> None:
    """Rule 17: the same for a time given as at=."""
    h = await harness_with_itself(make_harness, **NO_POLL)

    assert await fired(h, at=datetime.now(UTC) + SOON) >= 0


async def test_rule_17_a_delayed_next_fires_without_any_poll(make_harness: MakeHarness) -> None:
    """Rule 17: the same for Next(delay=…)."""
    h = await harness_with_itself(make_harness, **NO_POLL)

    assert await fired(h, step="later") >= 0


async def test_rule_17_a_retry_fires_without_any_poll(make_harness: MakeHarness) -> None:
    """Rule 17: the same for a retry."""
    h = await harness_with_itself(make_harness, **NO_POLL)

    assert await fired(h, step="again") >= 0


async def test_rule_17_a_delayed_start_of_another_process_fires_without_any_poll(make_harness: MakeHarness) -> None:
    """Rule 17: a worker is notified of a due time that another process's commit has set. Scenario 172."""
    h = await harness_with_itself(make_harness, **NO_POLL)

    async with h.another_engine() as other, h.engine.worker():
        far = await other.start(Timed, delay=timedelta(hours=1))
        near = await other.start(Timed, delay=SOON)
        late = await near.result(timeout=30)
        other_time = await far.get()

    assert late >= 0
    assert other_time.status is Status.RUNNABLE


async def test_rule_17_rows_fire_in_the_order_of_their_due_times(make_harness: MakeHarness) -> None:
    """Rule 17: in the order of their times, not of their starts."""
    h = await harness_with_itself(make_harness, **NO_POLL)

    async with h.engine.worker({"default": 1}):
        started = await h.engine.start_many([Timed.child(delay=SOON * factor) for factor in (3, 1, 2)])
        ended = [await h.engine.wait(handle.id, timeout=30) for handle in started]

    third, first, second = (snapshot.finished_at for snapshot in ended)
    assert first is not None
    assert second is not None
    assert third is not None
    assert first < second < third


async def test_rule_17_rows_that_came_due_without_a_worker_run_with_the_next_one(make_harness: MakeHarness) -> None:
    """Rule 17: an overdue row needs no timer, only a worker."""
    h = await harness_with_itself(make_harness, **NO_POLL)
    handle = await h.engine.start(Timed, delay=timedelta(hours=1))
    await h.advance(timedelta(hours=2))

    async with h.engine.worker():
        assert await handle.result(timeout=30) > 3_000


async def test_rule_17_a_row_locked_when_it_comes_due_fires_after_its_unlock(make_harness: MakeHarness) -> None:
    """Rule 17: a session that locks the row at that moment (a client that begins to wait) does not cost it a poll."""
    h = await harness_with_itself(make_harness, **NO_POLL)
    holder = await asyncpg.connect(h.url)

    async with h.engine.worker():
        handle = await h.engine.start(Timed, delay=SOON)
        await holder.execute("begin; select from stepwell.instances for no key update")
        await eventually(lambda: h.sql("select from stepwell.instances where due_at + $1 < now()", SOON))
        await holder.execute("rollback")
        late = await handle.result(timeout=30)

    assert late >= SOON.total_seconds()  # it did not run under the lock
    await holder.close()


async def test_rule_32_due_times_follow_the_clock_of_the_database(make_harness: MakeHarness) -> None:
    """Rule 32: the clock is the database's: a clock change moves due rows, at a worker that waits."""
    h = await harness_with_itself(make_harness, **NO_POLL)
    handle = await h.engine.start(Timed, delay=timedelta(days=30))

    async with h.engine.worker():
        waiting = await held(handle)
        await h.advance(timedelta(days=31))
        ended = await handle.wait(timeout=30)

    assert waiting.waiting_for == f"its time, {waiting.due_at.isoformat(timespec='seconds')}"
    assert ended.status is Status.DONE


async def test_rule_32_no_stored_time_is_the_local_one(make_harness: MakeHarness) -> None:
    """Rule 32: nothing depends on two machines agreeing about the time: the database's is ten years ahead."""
    h = await harness_with_itself(make_harness)
    years = timedelta(days=3_650)
    await h.advance(years)
    soon = datetime.now(UTC) + years - timedelta(days=1)

    async with h.engine.worker():
        handle = await h.engine.start(Timed, step="again")
        ended = await handle.wait(timeout=30)

    assert ended.finished_at is not None
    assert all(at > soon for at in (ended.created_at, ended.due_at, ended.updated_at, ended.finished_at))


async def test_rule_32_a_time_given_by_a_client_is_judged_by_the_database(make_harness: MakeHarness) -> None:
    """Rule 32: an hour from now by a client's clock is past for a database that is two hours ahead."""
    h = await harness_with_itself(make_harness, **NO_POLL)
    await h.advance(timedelta(hours=2))

    async with h.engine.worker():
        handle = await h.engine.start(Timed, at=datetime.now(UTC) + timedelta(hours=1))
        assert await handle.result(timeout=30) > 3_000


async def test_rule_32_a_day_has_24_hours_even_if_the_server_uses_summer_time(make_harness: MakeHarness) -> None:
    """Rule 32: a delay is a span of time, whatever the zone of the database is."""
    h = await make_harness([Timed])
    await h.sql("do $$ begin execute format('alter database %I set timezone = ''Europe/Berlin''', "
                "current_database()); end $$")
    year = [timedelta(days=days) for days in range(0, 365, 30)]

    async with h.another_engine() as engine:
        handles = await engine.start_many([Timed.child(delay=delay) for delay in year])
        started = [await engine.get(handle.id) for handle in handles]

    assert [instance.due_at - instance.created_at for instance in started] == year
