"""The databases that a pool keeps ready: made, lent, emptied and dropped in the loop of one thread."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from stepwell._store.testing.databases import Registrar, sibling
from stepwell.embedded import EmbeddedServer, data_home, installed
from stepwell.errors import NoDatabase

log = logging.getLogger("stepwell")

# Tests lose nothing if the machine dies; killed processes and restarted servers need no fsync.
SERVER_SETTINGS = {"fsync": "off", "full_page_writes": "off", "max_connections": "300"}
LEAST_MADE = 2  # by a process that takes more than one
MOST_SPARE = 4


class DatabaseStock:
    """The databases of one server. All methods are called in one loop."""

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

    async def take(self) -> str:
        """The URL of a migrated, empty database."""
        taker: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._takers.append(taker)
        self._stirred.set()
        return await taker

    def give_back(self, url: str) -> None:
        """Return a database."""
        self._returned.append(self._lent.pop(url))
        self._stirred.set()

    def close(self) -> None:
        """Let `serve` end."""
        self._is_closing = True
        self._stirred.set()

    async def serve(self) -> None:
        """Do what is asked for, until closed; then drop all databases."""
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
