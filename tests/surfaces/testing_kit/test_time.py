"""`h.advance`: one clock for SQL, for Python and for everything that waits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stepwell import Context, Done, InvalidInput, Machine, step
from tests.conftest import MakeHarness
from tests.surfaces.testing_kit.machines import Greeting, Parking


class Dating(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done(ctx.resources["now"]().isoformat())


async def test_python_time_and_sql_time_move_together(make_harness: MakeHarness) -> None:
    h = await make_harness([Dating], resources={})
    h.resources["now"] = h.now
    await h.advance(timedelta(days=300))
    await h.advance(timedelta(days=65))
    dating = await h.engine.start(Dating)

    await h.drain()

    [(sql,)] = await h.sql("select stepwell.now()")
    assert abs(h.now() - sql) < timedelta(minutes=1)
    assert h.now() - datetime.now(UTC) > timedelta(days=364)
    told = datetime.fromisoformat((await h.assert_done(dating)).result)
    assert abs(told - sql) < timedelta(minutes=1)
    assert abs((await dating.get()).created_at - sql) < timedelta(minutes=1)


async def test_a_row_that_is_due_runs_at_the_next_drain(make_harness: MakeHarness) -> None:
    h = await make_harness([Greeting, Parking])
    later = await h.engine.start(Greeting, delay=timedelta(hours=2))
    at = await h.engine.start(Greeting, at=h.now() + timedelta(hours=3))
    parking = await h.engine.start(Parking)
    await h.drain()

    await h.advance(timedelta(hours=2))
    await h.drain()
    await h.assert_done(later)
    await h.assert_waiting(at, for_="time")
    await h.advance(timedelta(hours=22))
    await h.drain()

    await h.assert_done(at)
    await h.assert_done(parking, [])


@pytest.mark.parametrize("by", [timedelta(seconds=-1), 5, None])
async def test_time_cannot_go_back(make_harness: MakeHarness, by: Any) -> None:
    h = await make_harness([Greeting])

    with pytest.raises(InvalidInput, match="by: expected a timedelta from 0 on"):
        await h.advance(by)
