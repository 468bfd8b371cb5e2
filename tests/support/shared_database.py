"""One database for many tests: emptied for each, which costs a hundredth of making a new one."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Self, TypeVar

from stepwell._store.testing import databases
from stepwell.embedded import EmbeddedServer, data_home
from stepwell.testing import Harness
from stepwell.testing.databases.stock import SERVER_SETTINGS

T = TypeVar("T")

EMPTY = (
    "truncate stepwell.instances, stepwell.instance_data, stepwell.signals, stepwell.tombstones, stepwell.machines, "
    "stepwell.queues, stepwell.workers, stepwell.await_units, stepwell.interactions, stepwell.reply_types, "
    "stepwell.retired_token_keys, stepwell.cleanups restart identity"
)


class SharedHarness(Harness):
    """A harness on an existing database that was used before; not for two tests at once."""

    def __init__(self, url: str, machines: Iterable[Any] = (), **options: Any) -> None:
        super().__init__(machines, **options)
        self.url = url

    async def __aenter__(self) -> Self:
        await databases.query(self.url, EMPTY)
        await databases.move_clock(self.url, timedelta(0))
        self.engine = await self._stack.enter_async_context(self.another_engine())
        return self


@contextmanager
def shared_database() -> Iterator[str]:
    """The URL of a migrated database, for as long as the block lasts."""
    with _database(_create_migrated) as url:
        yield url


@contextmanager
def empty_database() -> Iterator[str]:
    """The URL of a database with nothing in it, for as long as the block lasts."""
    with _database(_create_empty) as url:
        yield url


def in_own_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in another thread, so that it does not matter whether a loop runs in this one."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


@contextmanager
def _database(create: Callable[[str, str], Coroutine[Any, Any, None]]) -> Iterator[str]:
    name = f"stepwell_test_{secrets.token_hex(6)}"
    server = None
    server_url = os.environ.get("STEPWELL_TEST_DATABASE_URL")
    if not server_url:
        server = EmbeddedServer(data_home() / "testing-18", settings=SERVER_SETTINGS)
        server_url = server.join()
    try:
        in_own_loop(create(server_url, name))
        yield databases.sibling(server_url, name)
        in_own_loop(databases.drop(server_url, name))
    finally:
        if server is not None:
            server.leave()


async def _create_migrated(server_url: str, name: str) -> None:
    await databases.clone(server_url, await databases.ensure_template(server_url), name)


async def _create_empty(server_url: str, name: str) -> None:
    await databases.clone(server_url, "template0", name)
