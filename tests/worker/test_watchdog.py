"""A transaction that stays open and holds back vacuum is named in the log."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from stepwell import Context, Done, Machine, step
from stepwell._store.connection.pool import WORKER, Database
from stepwell._worker.upkeep.vacuum_watch import Watchdog
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually


class Impatient(Watchdog):
    """Warns at once, and looks whenever it is asked to."""

    LONGER_THAN = timedelta(0)
    LOOK_EVERY = 0.0


class Order(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done()


def warnings_of(holder: asyncpg.Connection, caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings that name this connection."""
    name = f"pid {holder.get_server_pid()} "
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING and name in r.getMessage()]


async def test_a_transaction_that_holds_back_vacuum_is_named_once(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    h = await make_harness([Order])
    holder = await asyncpg.connect(h.url, server_settings={"application_name": "monthly report"})
    transaction = holder.transaction(isolation="repeatable_read")

    async with h.engine.worker() as worker:
        await transaction.start()
        await holder.fetchval("select count(*) from stepwell.instances")
        watchdog = Impatient(worker._database)
        for _ in range(3):
            await watchdog.look(worker.id)
        await transaction.rollback()

    [warning] = warnings_of(holder, caplog)
    assert "(monthly report, idle in transaction, since " in warning
    assert "end that transaction" in warning
    await holder.close()


async def test_a_running_worker_looks_for_held_vacuum_by_itself(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watchdog, "LONGER_THAN", timedelta(0))
    monkeypatch.setattr(Watchdog, "LOOK_EVERY", 0.0)
    h = await make_harness([Order], reap=timedelta(seconds=0.1))
    holder = await asyncpg.connect(h.url)

    async with h.engine.worker(), holder.transaction(isolation="repeatable_read"):
        await holder.fetchval("select count(*) from stepwell.instances")
        await eventually(lambda: has_warned(holder, caplog))

    assert len(warnings_of(holder, caplog)) == 1
    await holder.close()


async def has_warned(holder: asyncpg.Connection, caplog: pytest.LogCaptureFixture) -> bool:
    return bool(warnings_of(holder, caplog))


async def test_only_one_live_worker_warns_of_a_held_vacuum(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    h = await make_harness([Order])
    holder = await asyncpg.connect(h.url)
    transaction = holder.transaction(isolation="repeatable_read")

    async with h.engine.worker() as one, h.engine.worker() as other:
        await transaction.start()
        await holder.fetchval("select count(*) from stepwell.instances")
        for worker in (one, other):
            await Impatient(worker._database).look(worker.id)
        await transaction.rollback()

    assert len(warnings_of(holder, caplog)) == 1
    await holder.close()


async def test_a_transaction_that_has_written_and_stays_open_is_named(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """It has no snapshot between two statements, and holds back vacuum all the same."""
    h = await make_harness([Order])
    await h.sql("create table notes (number integer)")
    holder = await asyncpg.connect(h.url)
    transaction = holder.transaction()

    async with h.engine.worker() as worker:
        await transaction.start()
        await holder.execute("insert into notes values (1)")
        await Impatient(worker._database).look(worker.id)
        await transaction.rollback()

    [warning] = warnings_of(holder, caplog)
    assert "idle in transaction, since " in warning
    await holder.close()


class Patient(Watchdog):
    """Warns of what it finds at two looks."""

    LONGER_THAN = timedelta(microseconds=1)
    LOOK_EVERY = 0.0


@asynccontextmanager
async def unprivileged(h: Harness) -> AsyncIterator[Database]:
    """The database as a role sees it that may not look at the sessions of others."""
    role = urlsplit(h.url).path.lstrip("/") + "_plain"
    await h.sql(f'create role "{role}"')
    await h.sql(f'grant usage on schema stepwell to "{role}"')
    await h.sql(f'grant select on stepwell.workers to "{role}"')
    try:
        async with Database(h.url, session={**WORKER, "role": role}) as database:
            yield database
    finally:
        await h.sql(f'drop owned by "{role}"')
        await h.sql(f'drop role "{role}"')


@pytest.mark.parametrize("isolation", ["repeatable_read", "read_committed"])
async def test_a_transaction_of_a_role_with_hidden_sessions_is_named(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture, isolation: Any
) -> None:
    h = await make_harness([Order])
    await h.sql("create table notes (number integer)")
    holder = await asyncpg.connect(h.url)
    transaction = holder.transaction(isolation=isolation)
    named = []

    async with unprivileged(h) as database, h.engine.worker() as worker:
        watchdog = Patient(database)
        for number in range(2):  # the first transaction is over at the second look
            await transaction.start()
            await holder.execute(
                "select from notes" if isolation == "repeatable_read" else "insert into notes values (1)"
            )
            await watchdog.look(worker.id)
            named.append(len(warnings_of(holder, caplog)))
            if number == 0:
                await transaction.rollback()
                transaction = holder.transaction(isolation=isolation)
                await h.sql("insert into notes values (2)")
        await watchdog.look(worker.id)
        await transaction.rollback()

    assert (named, len(warnings_of(holder, caplog))) == ([0, 0], 1)
    await holder.close()
