"""Keeps a server and databases ready for harnesses, in its own thread: a fresh one costs a test a few ms."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from contextlib import suppress

from stepwell.testing.databases.stock import DatabaseStock

PATIENCE = 150.0


class DatabasePool:
    """The databases of one server. Harnesses of any event loop take one and return it.

    A returned database is emptied in the background and used again, if nothing but rows was changed.
    """

    def __init__(self, url: str | None) -> None:
        self._stock = DatabaseStock(url)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name="stepwell testing", daemon=True)
        self._thread.start()

    async def take(self) -> str:
        """The URL of a migrated, empty database that no other test has."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._stock.take(), self._loop))

    def give_back(self, url: str) -> None:
        """Return a database; it is emptied or dropped in the background."""
        self._loop.call_soon_threadsafe(self._stock.give_back, url)

    def close(self) -> None:
        """Drop all databases and leave the server."""
        with suppress(RuntimeError):  # its loop has ended already
            self._loop.call_soon_threadsafe(self._stock.close)
        self._thread.join(PATIENCE)

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._stock.serve())
        finally:
            self._loop.close()


_keepers: dict[str | None, DatabasePool] = {}
_keeping = threading.Lock()


def database_pool() -> DatabasePool:
    """The pool on the server of `$STEPWELL_TEST_DATABASE_URL`, else on the embedded one; one per process."""
    url = os.environ.get("STEPWELL_TEST_DATABASE_URL") or None
    with _keeping:
        if url not in _keepers:
            _keepers[url] = DatabasePool(url)
        return _keepers[url]


def close_pools() -> None:
    """Leave all servers and drop what is kept there; the next harness starts a new pool."""
    with _keeping:
        kept = list(_keepers.values())
        _keepers.clear()
    for one in kept:
        one.close()


atexit.register(close_pools)
# A child of a fork has the pool, but not its thread.
os.register_at_fork(after_in_child=_keepers.clear)
