"""Keeps a server and databases ready for harnesses, in its own thread: a fresh one costs a test a few ms."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from stepwell._store.testing.databases import Registrar, sibling
from stepwell.embedded import EmbeddedServer, data_home, installed
from stepwell.errors import NoDatabase

log = logging.getLogger("stepwell")

T = TypeVar("T")

# Tests lose nothing if the machine dies; killed processes and restarted servers need no fsync.
SERVER_SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_connections": "300"}
LEAST_MADE = 2  # by a process that takes more than one
MOST_SPARE = 4
PATIENCE = 150.0


class DatabasePool:
    """The databases of one server. Harnesses of any event loop take one and return it.

    A returned database is emptied in the background and used again, if nothing but rows was changed.
    """

    def __init__(self, url: str | None) -> None:
        self._url = url
        self._server: EmbeddedServer | None = None
        self._registrar: Registrar | None = None
        self._spares: deque[str] = deque()
        self._lent: dict[str, str] = {}  # URL to name
        self._returned: deque[str] = deque()
        self._takers: deque[asyncio.Future[str]] = deque()
        self._taken = 0
        self._made = 0
        self._stirred = asyncio.Event()
        self._is_closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._live, name="stepwell testing", daemon=True)
        self._thread.start()

    async def take(self) -> str:
        """The URL of a migrated, empty database that no other test has."""
        return await asyncio.wrap_future(self._ask(self._take()))

    def give_back(self, url: str) -> None:
        """Return a database; it is emptied or dropped in the background."""
        self._loop.call_soon_threadsafe(self._note_return, url)

    def close(self) -> None:
        """Drop all databases and leave the server."""
        with suppress(RuntimeError):  # its loop has ended already
            self._loop.call_soon_threadsafe(self._note_closing)
        self._thread.join(PATIENCE)

    def _ask(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _live(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _take(self) -> str:
        taker: asyncio.Future[str] = self._loop.create_future()
        self._takers.append(taker)
        self._stirred.set()
        return await taker

    def _note_return(self, url: str) -> None:
        self._returned.append(self._lent.pop(url))
        self._stirred.set()

    def _note_closing(self) -> None:
        self._is_closing = True
        self._stirred.set()

    async def _serve(self) -> None:
        while not self._is_closing:
            await self._stirred.wait()
            self._stirred.clear()
            await self._work()
        await self._end()

    async def _work(self) -> None:
        """Serve waiting takers; returned databases are emptied first, as that costs less than a new one."""
        while not self._is_closing:
            while self._takers and self._spares:
                self._lend(self._spares.popleft())
            if self._returned:
                await self._recycle(self._returned.popleft())
            elif self._takers or self._wants_another:
                await self._make()
            else:
                return

    @property
    def _wants_another(self) -> bool:
        """A process that takes a second database takes a third: with one to spare, no test waits while one is
        emptied.
        """
        return self._taken > 1 and self._made < LEAST_MADE

    def _lend(self, name: str) -> None:
        taker = self._takers.popleft()
        if taker.done():  # cancelled meanwhile
            self._spares.append(name)
        elif self._registrar is not None:
            self._taken += 1
            url = sibling(self._registrar.url, name)
            self._lent[url] = name
            taker.set_result(url)

    async def _make(self) -> None:
        self._made += 1
        try:
            self._spares.append(await (await self._opened()).clone())
        except Exception as error:  # noqa: BLE001 - the taker raises it
            for taker in self._takers:
                if not taker.done():
                    taker.set_exception(error)
            self._takers.clear()

    async def _recycle(self, name: str) -> None:
        try:
            registrar = await self._opened()
            if len(self._spares) >= MOST_SPARE:
                await registrar.drop(name)
            elif (fresh := await registrar.recycle(name)) is not None:
                self._spares.append(fresh)
        except Exception as error:  # noqa: BLE001 - the test has ended; a later process drops what is left
            log.debug("testing: %s could not be used again: %s", name, error)

    async def _opened(self) -> Registrar:
        if self._registrar is None:
            registrar = Registrar(self._url or self._join())
            await registrar.open()
            self._registrar = registrar
        return self._registrar

    def _join(self) -> str:
        if not installed():
            raise NoDatabase
        self._server = EmbeddedServer(data_home() / "testing-18", settings=SERVER_SETTINGS)
        return self._server.join()

    async def _end(self) -> None:
        """Drop our databases, if the server still answers."""
        registrar = self._registrar
        try:
            if registrar is not None:
                for name in (*self._spares, *self._returned, *self._lent.values()):
                    await registrar.drop(name)
                await registrar.close()
        except Exception as error:  # noqa: BLE001 - the process ends; a later one drops what is left
            log.debug("testing: could not drop everything: %s", error)
        finally:
            if self._server is not None:
                self._server.leave()


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

