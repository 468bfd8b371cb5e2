"""PgBouncer as Debian packages it: in session mode the engine works, in another mode it is refused with the reason."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import asyncpg
import pytest

from stepwell import Context, Done, Engine, Machine, step
from stepwell._store.connection.pool import CLIENT, Database
from stepwell.errors import DatabaseUnavailable, UnsuitablePooler
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

PGBOUNCER = Path("/usr/sbin/pgbouncer")
IGNORING = "ignore_startup_parameters = extra_float_digits,default_transaction_isolation,timezone,jit,plan_cache_mode"
needs_pgbouncer = pytest.mark.skipif(not PGBOUNCER.exists(), reason="PgBouncer is not installed (Debian: pgbouncer)")


class Walk(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("walked")


def _start(lines: list[str], beside: Path) -> tuple[Path, subprocess.Popen[bytes]]:
    """Start PgBouncer as the user that owns the server's socket: it refuses root."""
    folder = Path(tempfile.mkdtemp(prefix="stepwell-pooler-", dir="/tmp"))
    folder.chmod(0o755)
    (folder / "pgbouncer.ini").write_text("\n".join(lines))
    user = (beside / ".s.PGSQL.5432").owner() if os.geteuid() == 0 else None
    with (folder / "log").open("wb") as log:
        command = [PGBOUNCER, folder / "pgbouncer.ini"]
        return folder, subprocess.Popen(command, user=user, stdout=log, stderr=log)


@asynccontextmanager
async def pooler(h: Harness, *lines: str) -> AsyncIterator[str]:
    """A PgBouncer before the harness's database; its URL for engines."""
    parts = urlsplit(h.url)
    query = parse_qs(parts.query)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder, process = _start([
        "[databases]", f"* = host={query['host'][0]} port={query.get('port', ['5432'])[0]} user={parts.username}",
        "[pgbouncer]", "listen_addr = 127.0.0.1", f"listen_port = {port}", "unix_socket_dir =", "auth_type = any",
        *lines,
    ], Path(query["host"][0]))  # fmt: skip
    url = f"postgresql://{parts.username}@127.0.0.1:{port}{parts.path}"
    try:
        await eventually(lambda: _answers(port))
        yield url
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder)


async def _answers(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


@needs_pgbouncer
@pytest.mark.parametrize("lines", [(), (IGNORING,)], ids=["as it comes", "ignoring startup parameters"])
async def test_a_pooler_in_session_mode_gives_all_that_the_engine_needs(
    make_harness: MakeHarness, lines: tuple[str, ...]
) -> None:
    h = await make_harness([Walk])
    name = urlsplit(h.url).path.lstrip("/")
    await h.sql(f'alter database "{name}" set default_transaction_isolation = serializable')

    async with pooler(h, "pool_mode = session", *lines) as url, Engine(url, machines=[Walk]) as engine:
        async with engine._opened.transaction() as session:
            shown = await session._connection.fetchrow(
                "select current_setting('transaction_isolation'), current_setting('plan_cache_mode'), "
                "current_setting('idle_in_transaction_session_timeout') <> '0'"
            )
        async with engine.worker():
            results = [await (await engine.start(Walk)).result(timeout=20) for _ in range(10)]

    assert tuple(shown) == ("read committed", "force_generic_plan", True)
    assert results == ["walked"] * 10


@needs_pgbouncer
@pytest.mark.parametrize("mode", ["transaction", "statement"])
async def test_a_pooler_in_another_mode_is_refused_with_the_reason(make_harness: MakeHarness, mode: str) -> None:
    h = await make_harness([Walk])

    async with pooler(h, f"pool_mode = {mode}", IGNORING) as url:
        with pytest.raises(UnsuitablePooler, match="pool_mode = session"):
            async with Engine(url, machines=[Walk]):
                pass


@needs_pgbouncer
@pytest.mark.parametrize("mode", ["transaction", "session"])
async def test_a_pooler_of_one_connection_is_refused_with_the_reason(
    make_harness: MakeHarness, mode: str
) -> None:
    h = await make_harness([Walk])

    async with pooler(h, f"pool_mode = {mode}", "default_pool_size = 1") as url:
        with pytest.raises(UnsuitablePooler, match=r"pool_mode, or a default_pool_size of 1"):
            async with Engine(url, machines=[Walk], lease=timedelta(seconds=2)):
                pass


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
async def test_the_engine_is_read_committed_whatever_the_database_says(
    make_harness: MakeHarness, isolation: str
) -> None:
    h = await make_harness([Walk])
    name = urlsplit(h.url).path.lstrip("/")
    await h.sql(f"alter database \"{name}\" set default_transaction_isolation = '{isolation}'")

    async with Engine(h.url, machines=[Walk]) as engine, engine._opened.transaction() as session:
        connection: asyncpg.Connection = session._connection
        assert await connection.fetchval("show transaction_isolation") == "read committed"


@pytest.mark.parametrize(("dropped", "said"), [
    ("*", r"sets: default_transaction_isolation is repeatable read instead of read committed, .*, and \d+ more;"),
    ("default_transaction_isolation", "default_transaction_isolation is repeatable read instead of read committed;"),
    ("plan_cache_mode", "sets: plan_cache_mode is auto instead of force_generic_plan;"),
    ("enable_seqscan", "sets: enable_seqscan is on instead of off;"),
    ("search_path", "sets: search_path is .*swallowing.* instead of pg_catalog, pg_temp;"),
    ("statement_timeout", "sets: statement_timeout is 0 instead of 8000;"),
    ("idle_in_transaction_session_timeout", "sets: idle_in_transaction_session_timeout is 0 instead of 10000;"),
])  # fmt: skip
async def test_a_session_that_drops_a_setting_is_refused_by_its_name(
    make_harness: MakeHarness, dropped: str, said: str
) -> None:
    h = await make_harness([Walk])
    await swallow(h, dropped)
    name = urlsplit(h.url).path.lstrip("/")
    await h.sql(f'alter database "{name}" set default_transaction_isolation = "repeatable read"')

    with pytest.raises(UnsuitablePooler, match=rf"{said}.*pgbouncer\.ini: pool_mode = session"):
        async with Engine(h.url, machines=[Walk]):
            pass


async def test_a_later_connection_that_drops_a_setting_is_not_used(make_harness: MakeHarness) -> None:
    h = await make_harness([Walk])

    async with Engine(h.url, machines=[Walk]) as engine:
        await swallow(h, "plan_cache_mode")
        async with engine._opened.connection():
            with pytest.raises(DatabaseUnavailable, match="plan_cache_mode is auto instead of force_generic_plan"):
                await engine.start(Walk)
        handle = await engine.start(Walk)

    assert (await h.engine.get(handle.id)).status == "runnable"


async def test_times_arrive_in_whatever_unit_postgres_shows_them(make_harness: MakeHarness) -> None:
    h = await make_harness([Walk])
    times = ["1", "999", "1000", "8000", "60000", "90000", "3600000", "86400000", "2147483647"]

    for time in times:
        async with Database(h.url, session={**CLIENT, "lock_timeout": time}) as database:
            assert await database.fetch("instances/read", []) == []


async def swallow(h: Harness, dropped: str) -> None:
    """Put another set_config first in the search path of later sessions: it sets one setting less than it says, or
    none, as a pooler may that drops settings."""
    name = urlsplit(h.url).path.lstrip("/")
    await h.sql("create schema swallowing")
    await h.sql(
        f"""create function swallowing.set_config(text, text, boolean) returns text language sql return
            case when $1 = '{dropped}' or '{dropped}' = '*' then $2 else pg_catalog.set_config($1, $2, $3) end"""
    )
    await h.sql(f'alter database "{name}" set search_path = swallowing, pg_catalog, public')
