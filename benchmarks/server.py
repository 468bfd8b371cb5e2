"""The Postgres of a run: its own embedded one, as durable as in production, or a given one."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit, urlunsplit

from benchmarks.bench import query
from benchmarks.progress import say
from stepwell.embedded import EmbeddedServer

DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on"}
SHOWN = (
    "server_version", "fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size", "autovacuum",
    "autovacuum_naptime",
)  # fmt: skip


@contextmanager
def own_server(settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """The URL of a server that lives as long as the block, in a temporary folder; with other settings to try them."""
    home = Path(tempfile.mkdtemp(prefix="stepwell-bench-"))
    home.chmod(0o755)  # for root the server is `nobody`, which has to pass; the cluster's own folder is private
    try:
        with EmbeddedServer(home / "postgres", settings=DURABLE | dict(settings)) as server:
            yield server.url()
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def chosen(url: str | None, settings: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """The given URL, or that of our own server."""
    if url is not None:
        yield url
        return
    say("starting a Postgres of our own")
    with own_server(settings) as own:
        yield own


@asynccontextmanager
async def fresh_database(server: str, like: str | None = None) -> AsyncIterator[str]:
    """The URL of an empty database, or of a copy of one without connections; dropped after the block."""
    name = f"stepwell_bench_{secrets.token_hex(6)}"
    template = "" if like is None else f" template {urlsplit(like).path.removeprefix('/')}"
    await query(server, f"create database {name}{template}")
    try:
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
    finally:
        await query(server, f"drop database {name} with (force)")


async def settings(server: str) -> dict[str, str]:
    """Settings that the server reports."""
    asked = "select name, current_setting(name) as setting from pg_settings where name = any ($1)"
    rows = await query(server, asked, [list(SHOWN)])
    return {row["name"]: row["setting"] for row in rows}
