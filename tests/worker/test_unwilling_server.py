"""A server that says no to everything for a while: finished steps are kept, and committed once it is well again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from stepwell import Context, Done, Engine, Machine, Stop, step
from stepwell._store.testing.databases import CLIENT_ROLE
from stepwell.errors import DatabaseUnavailable
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually
from tests.surfaces.sql_and_drivers.roles import connected, role

STEPS = 60
GUIDE = (Path(__file__).parents[2] / "docs/guides/database.md").read_text()
GRANTS = GUIDE.partition("grant usage on schema")[2].partition("```")[0]
END_CONNECTIONS = "select pg_terminate_backend(pid) from pg_stat_activity where usename = '{role}'"
FAULTS = {
    "read only": (
        [
            "alter role {role} set default_transaction_read_only = on",
            END_CONNECTIONS,
        ],
        [
            "alter role {role} reset default_transaction_read_only",
            END_CONNECTIONS,
        ],
    ),
    "rights revoked": (
        ["revoke all on all tables in schema stepwell from {role}"],
        ["grant select, insert, update, delete on all tables in schema stepwell to {role}"],
    ),
    "schema renamed": (
        ["alter schema stepwell rename to elsewhere"],
        ["alter schema elsewhere rename to stepwell"],
    ),
}
REFUSALS = {
    "read only": "ReadOnlySQLTransactionError",
    "rights revoked": "InsufficientPrivilegeError",
    "schema renamed": "UndefinedTableError",
}


class Signs:
    """What the steps did, and when they may end."""

    def __init__(self) -> None:
        self.runs: list[int] = []
        self.handled: list[str] = []
        self.end = asyncio.Event()


class Paid(Machine):
    """Pays once; an error afterwards is told to `handle`, which undoes it."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        ctx.resources.runs.append(ctx.id)
        await ctx.resources.end.wait()
        return Done("paid")

    async def handle(self, error: Exception, ctx: Context[Any]) -> Stop:
        ctx.resources.handled.append(repr(error))
        return Stop("undone")


@dataclass(frozen=True)
class Plain:
    """A database, and the URL of a role with the rights of the guide."""

    h: Harness
    url: str

    async def run(self, statements: list[str]) -> None:
        for statement in statements:
            await self.h.sql(statement.format(role=urlsplit(self.url).username))


@pytest.fixture
async def plain(make_harness: MakeHarness) -> AsyncIterator[Plain]:
    h = await make_harness([Paid])
    async with role(h, "worker") as url, connected(h.url) as owner:
        granting = f"grant usage on schema{GRANTS}".replace("stepwell_client_shop", CLIENT_ROLE)
        await owner.execute(granting.replace("shop_app", str(urlsplit(url).username)))
        yield Plain(h, url)


@pytest.mark.parametrize("fault", FAULTS)
async def test_finished_steps_outlast_a_server_that_refuses_all_and_run_once(
    plain: Plain, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "stepwell")
    breaks, mends = FAULTS[fault]
    signs = Signs()
    async with Engine(plain.url, machines=[Paid], resources=signs) as engine, engine.worker():
        started = await engine.start_many([(Paid, {})] * STEPS)
        await eventually(lambda: len(signs.runs) == 50)  # the slots; the others follow

        await plain.run(breaks)
        signs.end.set()
        await eventually(lambda: said(caplog, "committer", REFUSALS[fault]) and said(caplog, "claimer", ""))
        await asyncio.gather(*[fails(engine) for _ in range(3)])
        await plain.run(mends)
        results = [await handle.result(timeout=60) for handle in started]

    assert results == ["paid"] * STEPS
    assert (sorted(signs.runs), signs.handled) == (sorted(handle.id for handle in started), [])
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert_one_outage(caplog)


def assert_one_outage(caplog: pytest.LogCaptureFixture) -> None:
    """A line at the beginning, and one at the end; a cut connection may be one of its own before the refusals."""
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
    for begin, end in (("is unavailable", "is available again"), ("refuses statements", "accepts statements again")):
        begins = [line for line in told if line.startswith(f"the database {begin} (")]
        ends = [line for line in told if line.startswith(f"the database {end}")]
        assert len(begins) == len(ends) <= 2, told


def said(caplog: pytest.LogCaptureFixture, service: str, refusal: str) -> bool:
    told = [record.getMessage() for record in caplog.records]
    return any(message.startswith(f"{service}: ") and refusal in message for message in told)


async def fails(engine: Engine) -> None:
    with pytest.raises(DatabaseUnavailable, match=r"read-only|permission denied|does not exist|ConnectionDoesNotExist"):
        await engine.start(Paid)
