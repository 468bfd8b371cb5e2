"""Roles of a single test: roles belong to the whole server, so they are named after the test's database and dropped."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from stepwell.testing import Harness


@asynccontextmanager
async def role(h: Harness, name: str, *, options: str = "", of: str = "") -> AsyncIterator[str]:
    """A login role, a member of `of` if given; yields the URL by which it logs in."""
    database = urlsplit(h.url).path.strip("/")
    full, password = f"{database}_{name}", secrets.token_hex(8)
    await h.sql(f"create role {full} login password '{password}' {options} {f'in role {of}' if of else ''}")
    try:
        yield with_user(h.url, full, password)
    finally:
        await h.sql(f"drop owned by {full} cascade")
        await h.sql(f"drop role {full}")


def with_user(url: str, user: str, password: str) -> str:
    """The URL of the same database for another role."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=f"{user}:{password}@{parts.netloc.rpartition('@')[2]}"))


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()
