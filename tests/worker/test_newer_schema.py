"""A schema that is migrated under a running worker: compatible, it goes on; if not, it drains and says why."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Machine, SchemaTooNew, Status, Stop, step
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

BEAT = timedelta(milliseconds=50)
SOON = timedelta(milliseconds=300)
RENAMED = {  # a column that a commit names, and one that every beat names
    "commit": ("instance_data", "result"),
    "beat": ("workers", "begun_at"),
}


class Paid(Machine):
    """Pays, and has paid when the gate is open; an error is told to `handle`, which undoes it."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        ctx.resources["runs"].append(ctx.id)
        await ctx.resources["gate"].wait()
        return Done("paid")

    async def handle(self, error: Exception, ctx: Context[Any]) -> Stop:
        ctx.resources["handled"].append(repr(error))
        return Stop("undone")


async def paying(make_harness: MakeHarness, **settings: Any) -> tuple[Harness, dict[str, Any]]:
    resources: dict[str, Any] = {"runs": [], "handled": [], "gate": asyncio.Event()}
    return await make_harness([Paid], resources=resources, heartbeat=BEAT, **settings), resources


async def migrate(h: Harness, *, compatible: bool, renamed: tuple[str, str] | None = None) -> None:
    """What a migration of a later release does, in one transaction."""
    rename = "" if renamed is None else f"alter table stepwell.{renamed[0]} rename {renamed[1]} to renamed;"
    oldest = "oldest_code" if compatible else "version + 1"
    await h.sql(f"do $$ begin {rename} update stepwell.meta set version = version + 1, oldest_code = {oldest}; end $$")


async def go_back(h: Harness, renamed: tuple[str, str]) -> None:
    """Let this code stand for the next release's."""
    await h.sql(f"alter table stepwell.{renamed[0]} rename renamed to {renamed[1]}")
    await h.sql("update stepwell.meta set version = version - 1, oldest_code = version - 1")


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    errors = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    return [message for message in errors if "claiming nothing more" in message]


@pytest.mark.parametrize("names", RENAMED)
async def test_a_worker_too_old_for_the_schema_runs_its_step_once(
    make_harness: MakeHarness, names: str, caplog: pytest.LogCaptureFixture
) -> None:
    h, resources = await paying(make_harness, drain_timeout=SOON, lease=timedelta(seconds=1), reap=SOON)
    renamed = RENAMED[names]
    handle = await h.engine.start(Paid)

    async with h.engine.worker() as worker:
        await eventually(lambda: resources["runs"])
        await migrate(h, compatible=False, renamed=renamed)
        resources["gate"].set()
        await eventually(lambda: worker.id is None)
        while_old = list(resources["runs"])
    await go_back(h, renamed)
    async with h.another_engine() as upgraded, upgraded.worker():
        ended = await handle.wait(timeout=30)

    assert len(said(caplog)) == 1
    assert "is at version" in said(caplog)[0]
    assert (while_old, resources["handled"]) == ([handle.id], [])
    assert (ended.result, ended.crashes) == ("paid", 0)


async def test_a_worker_too_old_for_the_schema_returns_claims_and_commits(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    h, resources = await paying(make_harness, drain_timeout=timedelta(seconds=30))
    first, *waiting = await h.engine.start_many([(Paid, {})] * 4)

    async with h.engine.worker({"default": 1}, prefetch=3) as worker:
        await eventually(lambda: is_executing(h, 4))
        await migrate(h, compatible=False)
        await eventually(lambda: is_executing(h, 1))
        with armed("heartbeat.beaten") as beaten:  # the step runs on, and each beat finds the schema too new
            await beaten.reached(3)
        later = await h.engine.start(Paid)
        resources["gate"].set()
        await eventually(lambda: worker.id is None)
        left = [(await handle.get()).status for handle in (*waiting, later)]

    assert (await first.get()).result == "paid"
    assert left == [Status.RUNNABLE] * 4
    assert (resources["runs"], len(said(caplog))) == ([first.id], 1)


async def test_a_worker_continues_to_claim_on_a_compatible_newer_schema(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    h, resources = await paying(make_harness)
    resources["gate"].set()

    async with h.engine.worker():
        await migrate(h, compatible=True)
        with armed("heartbeat.beaten") as beaten:
            await beaten.reached(2)
        result = await (await h.engine.start(Paid)).result(timeout=30)
    async with h.another_engine() as late, late.worker():
        of_late = await (await late.start(Paid)).result(timeout=30)

    assert (result, of_late, said(caplog)) == ("paid", "paid", [])


async def test_a_worker_does_not_start_on_a_schema_that_is_too_new(make_harness: MakeHarness) -> None:
    h, _ = await paying(make_harness)
    await migrate(h, compatible=False)

    with pytest.raises(SchemaTooNew):
        async with h.engine.worker():
            pass

    assert [worker.alive for worker in await h.engine.insights.workers()] == [False]


async def test_a_worker_that_lost_its_lease_does_not_enter_a_schema_too_new(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    h, _ = await paying(make_harness, drain_timeout=SOON)

    async with h.engine.worker() as worker:
        await h.sql("with old as (delete from stepwell.workers) "
                    "update stepwell.meta set version = version + 1, oldest_code = version + 1")
        await eventually(lambda: said(caplog))
        await eventually(lambda: worker.id is None)

    assert (worker.stats.leases_lost, len(said(caplog))) == (1, 1)


async def is_executing(h: Harness, count: int) -> bool:
    [row] = await h.sql("select count(*) as number from stepwell.instances where status = 'executing'")
    return bool(row["number"] == count)
