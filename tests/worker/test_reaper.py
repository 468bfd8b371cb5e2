"""The parts of the reaper's tick do not hang on one another, and its look for idle keys goes on where it ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Machine, step
from stepwell._core.store_errors import Outage
from stepwell._store import concurrency_keys, instances
from stepwell._store.registrations import workers
from stepwell._worker.upkeep import reaper
from stepwell._worker.upkeep.vacuum_watch import Watchdog
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

INSERT = """
insert into stepwell.instances
  (machine, version, step, queue, due_at, created_at, updated_at, status, hold, concurrency_key)
select 'Elsewhere', 1, 'a', 'nowhere', now(), now(), now(), 'runnable', 'key', 'key ' || n
from generate_series(1, $1::integer) as n"""


class Order(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done()


async def fails(*_: object) -> Any:
    raise Outage("canceling statement due to statement timeout")


FAILING = {
    "stalled": (workers, "end_stalled"), "lost": (instances, "find_lost"), "versions": (instances, "admit_versions"),
    "watchdog": (Watchdog, "look"), "idle": (concurrency_keys.IdleSearch, "look"),
}  # fmt: skip


@pytest.mark.parametrize("failing", FAILING)
async def test_one_failing_part_of_the_reapers_tick_does_not_stop_the_others(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    h = await make_harness([Order], reap=timedelta(seconds=0.05))
    seen = set[str]()

    def noted(part: str, act: Any) -> Any:
        async def look(*args: Any) -> Any:
            seen.add(part)
            return await act(*args)

        return look

    async with h.engine.worker():
        for part, (owner, name) in FAILING.items():
            act = fails if part == failing else getattr(owner, name)
            monkeypatch.setattr(owner, name, noted(part, act))

        await eventually(lambda: seen == set(FAILING))


async def test_a_tick_continues_the_sweep_of_idle_keys_where_time_ran_out(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrency_keys, "PAGE", 3)
    monkeypatch.setattr(reaper, "IDLE_PATIENCE", 0.0)
    h = await make_harness([Order], reap=timedelta(seconds=0.05))
    await h.engine.migrate()
    await h.sql(INSERT, 10)

    async with h.engine.worker():
        await eventually(lambda: _are_all_free(h))


async def _are_all_free(h: Any) -> bool:
    return not await h.sql("select from stepwell.instances where hold is not null")
