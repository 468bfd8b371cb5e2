"""A state that was inserted by SQL meets its type at the first claim: if it does not fit, `handle` gets it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

import pytest

from stepwell import Context, Done, InvalidState, Machine, Next, Outcome, Retry, Status, Stop, step
from stepwell.testing import Harness
from tests.conftest import MakeHarness


class Strict(Machine):
    @dataclass
    class State:
        number: int
        note: str = "none"

    @step
    async def start(self, ctx: Context[State]) -> Outcome:
        return Next(self.end)

    @step
    async def end(self, ctx: Context[State]) -> Outcome:
        return Done([ctx.state.number, ctx.state.note])


class Later(Strict):
    @step
    async def start(self, ctx: Context[Strict.State]) -> Outcome:
        return Next(self.end, delay=timedelta(hours=1))


class Mending(Strict):
    """Makes a state of the raw one."""

    async def handle(self, error: Exception, ctx: Context[Strict.State]) -> Outcome:
        assert isinstance(error, InvalidState)
        assert isinstance(ctx.state, dict)
        return Retry(state=Strict.State(int(ctx.state["number"])))


class Giving(Strict):
    """Reports the raw state, and fails."""

    async def handle(self, error: Exception, ctx: Context[Strict.State]) -> Outcome:
        return Stop(f"can not do anything with {ctx.state}")


@pytest.fixture
async def machines(make_harness: MakeHarness) -> Harness:
    h = await make_harness([Strict, Later, Mending, Giving])
    await h.engine.migrate()
    return h


async def start(h: Harness, machine: str, state: str) -> int:
    [[id_]] = await h.sql("select stepwell.start($1, $2::text::jsonb)", machine, state)
    return int(id_)


async def test_a_state_that_fits_runs_with_its_defaults(machines: Harness) -> None:
    id_ = await start(machines, "Strict", '{"number": 7}')

    async with machines.engine.worker():
        assert await machines.engine.handle(id_).result(timeout=20) == [7, "none"]


async def test_a_state_that_does_not_fit_fails_with_its_path(machines: Harness) -> None:
    ids = [await start(machines, "Strict", state) for state in ('{"number": "7"}', "{}")]

    async with machines.engine.worker():
        ended = [await machines.engine.wait(id_, timeout=20) for id_ in ids]

    assert [instance.status for instance in ended] == [Status.FAILED] * 2
    assert [instance.error.type for instance in ended if instance.error] == ["InvalidState"] * 2
    assert "number" in ended[0].error.message  # type: ignore[union-attr]  # it has failed


async def test_handle_gets_the_raw_state_and_may_repair_it(machines: Harness) -> None:
    mended = await start(machines, "Mending", '{"number": "7"}')
    given_up = await start(machines, "Giving", '{"number": "7"}')

    async with machines.engine.worker():
        assert await machines.engine.handle(mended).result(timeout=20) == [7, "none"]
        failed = await machines.engine.wait(given_up, timeout=20)

    assert failed.error is not None
    assert failed.error.message == "can not do anything with {'number': '7'}"
    assert failed.state == {"number": "7"}


async def test_a_checked_state_that_no_longer_fits_waits_for_better_code(machines: Harness) -> None:
    """Rule 9a holds from the first commit on: a bad deploy does not end instances that were started by SQL."""
    id_ = await start(machines, "Later", '{"number": 7}')
    await machines.drain()
    await machines.sql("update stepwell.instance_data set state = '{\"number\": \"seven\"}' where id = $1", id_)

    await machines.drain(with_scheduled=True)

    waiting = await machines.engine.get(id_)
    assert (waiting.status, waiting.step, str(waiting.hold)) == (Status.RUNNABLE, "end", "unfit")
