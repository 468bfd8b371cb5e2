"""Making and opening an engine: settings, URLs, servers and schemas that do not fit."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from stepwell import (
    Context,
    DatabaseUnreachable,
    Done,
    Engine,
    InvalidDatabaseURL,
    Machine,
    SchemaOutdated,
    SchemaTooNew,
    ServerTooOld,
    SettingError,
    step,
)
from tests.conftest import MakeHarness

URL = "postgresql://user:secret@localhost/db"


class Order(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"leese": timedelta(seconds=1)}, "setting 'leese': is unknown; did you mean 'lease'"),
        ({"lease": 60}, "setting 'lease': expected a timedelta, got 60"),
        ({"max_crashes": 0}, "setting 'max_crashes': 0 is out of range"),
        ({"queues": {"default": 0}}, "setting 'queues': 'default' has 0 slots"),
        ({"heartbeat": timedelta(seconds=21)}, "setting 'heartbeat': 0:00:21 is longer than a third of the lease"),
    ],
)
def test_a_wrong_setting_fails_at_construction_by_name(settings: dict[str, Any], message: str) -> None:
    """Scenario 176."""
    with pytest.raises(SettingError, match=message):
        Engine(URL, **settings)


def test_the_environment_sets_what_keywords_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_POLL", "0.5")
    monkeypatch.setenv("STEPWELL_QUEUES", "mail=3")
    monkeypatch.setenv("STEPWELL_TENANT", "acme")

    engine = Engine(URL, tenant="other")

    assert (engine.settings.poll, engine.settings.queues) == (timedelta(seconds=0.5), {"mail": 3})
    assert engine.settings.tenant == "other"


def test_a_wrong_variable_fails_at_construction_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPWELL_LEASE", "a minute")

    with pytest.raises(SettingError, match="STEPWELL_LEASE='a minute' cannot be parsed"):
        Engine(URL)


async def test_a_wrong_setting_of_a_worker_is_refused_by_name(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])

    with pytest.raises(SettingError, match="setting 'prefech': is unknown; did you mean 'prefetch'"):
        async with h.engine.worker(prefech=3):
            pass


@pytest.mark.parametrize("url", ["", "localhost/db", "mysql://localhost/db", "sqlite:///file", 5])
def test_a_url_of_another_database_is_refused_at_construction(url: Any) -> None:
    with pytest.raises(InvalidDatabaseURL, match="expected postgresql://user:password@host:5432/database"):
        Engine(url)


@pytest.mark.parametrize("url", ["postgresql://localhost:none/db", "postgresql://[::1/db"])
async def test_a_url_that_does_not_parse_is_refused_when_opened(url: str) -> None:
    with pytest.raises(DatabaseUnreachable):
        async with Engine(url):
            pass


async def test_a_closed_port_is_unreachable_and_the_error_hides_the_password() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]

        with pytest.raises(DatabaseUnreachable) as caught:
            async with Engine(f"postgresql://user:secret@127.0.0.1:{port}/db"):
                pass

    assert caught.value.where == f"postgresql://user@127.0.0.1:{port}/db"
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-x\r\n", b"N", b"\x00" * 64])
async def test_a_port_without_the_postgres_protocol_is_unreachable(greeting: bytes) -> None:
    async with serving(greeting) as port:
        with pytest.raises(DatabaseUnreachable, match=f"no Postgres answers at postgresql://127.0.0.1:{port}/db"):
            async with Engine(f"postgresql://127.0.0.1:{port}/db"):
                pass


async def test_a_missing_database_is_unreachable(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])
    [row] = await h.sql("select current_database() as name")
    elsewhere = h.url.replace(row["name"], "nowhere")

    with pytest.raises(DatabaseUnreachable, match="nowhere"):
        async with Engine(elsewhere):
            pass


async def test_a_missing_user_is_unreachable(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])
    parts = urlsplit(h.url)

    with pytest.raises(DatabaseUnreachable, match="nobody_we_know"):
        async with Engine(urlunsplit(parts._replace(netloc="nobody_we_know@" + parts.netloc.rpartition("@")[2]))):
            pass


async def test_a_missing_schema_error_says_how_to_migrate_and_migrating_helps(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])
    await h.sql("drop schema stepwell cascade")
    engine = h.another_engine()

    with pytest.raises(SchemaOutdated, match=r"is missing, version .* is needed; run: stepwell migrate") as caught:
        async with engine:
            pass
    applied = await engine.migrate()
    async with engine, engine.worker():
        handle = await engine.start(Order)
        await handle.result(timeout=30)

    assert (caught.value.found, applied[0]) == (0, "0001_initial")
    assert await h.another_engine().migrate() == []


async def test_a_schema_of_a_later_release_is_refused_by_every_entry_point(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])
    await h.sql("update stepwell.meta set version = 999, oldest_code = 999")
    engine = h.another_engine()

    with pytest.raises(SchemaTooNew, match="is at version 999, this Stepwell knows up to"):
        async with engine:
            pass
    with pytest.raises(SchemaTooNew):
        await engine.migrate()


async def test_a_compatible_schema_of_a_later_release_is_used_but_not_migrated(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])
    await h.sql("update stepwell.meta set version = 999")
    engine = h.another_engine()

    async with engine, engine.worker():
        handle = await engine.start(Order)
        await handle.result(timeout=30)

    assert await engine.check() == 999
    with pytest.raises(SchemaTooNew):
        await engine.migrate()


async def test_an_engine_that_failed_to_open_leaves_no_connection(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])
    await h.engine.close()
    await h.sql("update stepwell.meta set version = 999, oldest_code = 999")

    with pytest.raises(SchemaTooNew):
        async with h.another_engine():
            pass

    connected = "select from pg_stat_activity where datname = current_database() and application_name like 'stepwell%'"
    assert await h.sql(connected) == []


@asynccontextmanager
async def serving(greeting: bytes) -> AsyncIterator[int]:
    """A TCP server that reads a little, sends the greeting, and closes the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)
        writer.write(greeting)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def test_a_server_older_than_the_oldest_supported_is_refused(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No server before 15 is available, so the limit is raised above the one that is."""
    h = await make_harness([])
    monkeypatch.setattr("stepwell._store.connection.server_check.OLDEST_SERVER", 990_000)

    with pytest.raises(ServerTooOld, match=r"the server is PostgreSQL 1\d.*; Stepwell needs 15 or newer"):
        await h.another_engine().__aenter__()
