"""`explore_crashes`: a crash before and after every commit shows which steps cannot be repeated."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Await, Context, Done, HarnessError, InvalidInput, Machine, Spawn, step
from stepwell.testing import Crash, Harness, Report, explore_crashes
from stepwell.testing.crashes.explore import _spread
from stepwell.testing.drain_report import Ran
from tests.surfaces.testing_kit.machines import Greeting


class Order(Machine):
    """Correct, and full of ids, times and random words that differ in each run."""

    @step
    async def start(self, ctx: Context[Any]) -> Spawn:
        ctx.state["token"] = uuid.uuid4().hex
        # Once, however often it is tried; but each try uses up an id, so that later rows have other ids after a crash.
        await ctx.resources["h"].engine.start(Greeting, key="card", key_scope="forever", if_exists="return")
        return Spawn([Greeting.child(key="gift")], then=self.park)

    @step
    def park(self, ctx: Context[Any]) -> Await:
        return Await("paid", then=self.end, timeout=timedelta(days=1))

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        key = f"{ctx.id}:{ctx.step}"
        if key not in ctx.resources["seen"]:
            ctx.resources["seen"].add(key)
            ctx.resources["h"].record("ship", order=ctx.id, word=uuid.uuid4(), to="Ada")
        ids = [child.id for child in ctx.children]
        return Done({"id": ctx.id, "children": ids, "token": ctx.state["token"], "paid": len(ctx.awaited)})


async def order(h: Harness) -> Any:
    h.resources = {"h": h, "seen": set()}
    handle = await h.engine.start(Order, {})
    await h.drain()
    await handle.signal("paid")
    await h.drain()
    return await h.assert_done(handle)


async def test_values_that_differ_in_every_run_are_no_difference() -> None:
    report = await explore_crashes(order, machines=[Order, Greeting])

    assert report.commits == [
        "Order.start → spawn park", *["Greeting.start → done"] * 2, "Order.park → await end", "Order.end → done",
    ]  # fmt: skip
    assert (report.ok, len(report.crashes), report.differences) == (True, 10, [])


class Trying(Machine):
    """Ends differently when it is tried again."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("first" if ctx.attempt == 0 else "again")


class Hanging(Machine):
    """Waits for a signal that never comes when it is tried again."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        if ctx.attempt:
            await asyncio.Event().wait()
        return Done()


async def start_and_drain(machine: type[Machine], h: Harness) -> Any:
    handle = await h.engine.start(machine, key="k")
    await h.drain()
    return await handle.result(timeout=5)


async def test_another_result_after_a_crash_is_reported() -> None:
    async def scenario(h: Harness) -> Any:
        return await start_and_drain(Trying, h)

    report = await explore_crashes(scenario, machines=[Trying], check=False)

    [crash] = report.differences
    assert (crash.number, crash.side, str(crash.ran)) == (1, "before", "Trying.start → done")
    assert [(d.what, d.expected, d.came) for d in crash.differences] == [
        ("returned", "'first'", "'again'"),
        ("Trying 'k': result", "'first'", "'again'"),
    ]
    assert "runs again after this crash, with ctx.attempt one higher" in str(report)


class Booking(Machine):
    """Writes a row into this database, on a connection that is independent of the step."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        await ctx.resources.sql(INSERT)
        return Done()


class SafeBooking(Machine):
    """Its twin: the row is committed with the outcome, or not at all."""

    @step(transactional=True)
    async def start(self, ctx: Context[Any]) -> Done:
        await ctx.connection.execute(INSERT)
        return Done()


INSERT = "insert into public.bookings values (1)"


@pytest.mark.parametrize(("machine", "is_ok"), [(Booking, False), (SafeBooking, True)])
async def test_a_row_written_twice_is_reported_and_a_transactional_one_is_not(
    machine: type[Machine], is_ok: bool
) -> None:
    async def scenario(h: Harness) -> dict[str, int]:
        h.resources = h
        await h.sql("create table public.bookings (n int)")
        await start_and_drain(machine, h)
        return {"rows": len(await h.sql("select from public.bookings"))}

    report = await explore_crashes(scenario, machines=[machine], check=False)

    assert [crash.side for crash in report.crashes] == ["before", "after"]
    assert report.ok is is_ok
    if not is_ok:
        assert [str(d.what) for crash in report.differences for d in crash.differences] == ["returned: rows"]


async def test_a_scenario_that_hangs_after_a_crash_is_reported() -> None:
    async def scenario(h: Harness) -> Any:
        return await start_and_drain(Hanging, h)

    report = await explore_crashes(scenario, machines=[Hanging], check=False, timeout=2)

    [crash] = report.differences
    assert crash.troubles == ["the scenario did not end within 2 s; left: Hanging.start executing"]


async def test_a_scenario_that_raises_after_a_crash_is_reported() -> None:
    async def scenario(h: Harness) -> None:
        await start_and_drain(Greeting, h)
        assert (await h.engine.get("k")).fence == 2, "claimed twice"

    report = await explore_crashes(scenario, machines=[Greeting], check=False)

    [crash] = report.differences
    assert crash.troubles[0].startswith("the scenario raised AssertionError: claimed twice")


def test_many_commits_are_sampled_and_the_report_says_so() -> None:
    numbers = _spread(500, 3)
    ran = Ran(1, "Greeting", "start", 0, "done", None)
    crashes = [Crash(number, ran, side, []) for number in numbers for side in ("before", "after")]

    report = Report(["Greeting.start → done"] * 500, crashes)

    assert numbers == [1, 251, 500]
    assert str(report) == "500 commits (at 3 of them), 6 crashes: every one came out as without a crash"


async def test_an_invalid_scenario_or_one_without_commits_is_refused() -> None:
    async def idle(h: Harness) -> None:
        await h.engine.start(Greeting)

    with pytest.raises(HarnessError, match=r"the scenario committed no step: .* call `await h.drain\(\)`"):
        await explore_crashes(idle, machines=[Greeting])
    with pytest.raises(InvalidInput, match=r"scenario: expected an `async def scenario\(h\)`"):
        await explore_crashes(lambda h: None, machines=[Greeting])  # type: ignore[arg-type,return-value]
    with pytest.raises(InvalidInput, match=r"machines: expected a list of machines and jobs, .*=\[Greeting\]"):
        await explore_crashes(idle, machines=Greeting)  # type: ignore[arg-type]
