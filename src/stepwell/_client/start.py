"""Inserts instances and notifies workers: many in one transaction; concurrent single starts share a statement."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

from stepwell._client.batching import Batcher
from stepwell._core.registry import Registry
from stepwell._core.start_request import NewInstance
from stepwell._core.store_errors import Contention
from stepwell._hooks.emitter import Emitter
from stepwell._notify.notifier import Notifier
from stepwell._store import instances, limits
from stepwell._store.connection import notifications
from stepwell._store.connection.pool import Database
from stepwell._store.connection.retry import MOST_TRIES, retried
from stepwell._store.drivers import borrow, sql_functions
from stepwell._store.operations.start import Reader, Started, prepare, start
from stepwell._store.registrations import machines
from stepwell.config import Settings
from stepwell.errors import Duplicate

T = TypeVar("T")

CHUNK = 5_000  # entries of one statement
FEW = 1_000  # up to this number, entries need neither chunks nor a long transaction
STREAMED = 2_000  # entries of one streamed statement; the next ones are prepared meanwhile
FIRST_STREAMED = 400  # entries of the first streamed statement: Postgres waits until they are prepared
LARGEST_TEXT = 64_000_000  # characters of the states in one streamed statement, plus one slice at most
SLICE = 200  # entries that are checked before other tasks may run


class StartOperations:
    """The inserts of a client; a call returns once its instances are durable."""

    def __init__(
        self, database: Database, registry: Registry, notifier: Notifier, emitter: Emitter, settings: Settings
    ) -> None:
        self._database = database
        self._registry = registry
        self._notifier = notifier
        self._emitter = emitter
        self._settings = settings
        self._registered: set[tuple[str, int]] = set()  # machines that this client has registered
        self._singles = Batcher(self._insert_singles, lambda single: len(single[0].state))

    async def start(self, entry: NewInstance, connection: object, notify: bool) -> int | Duplicate:
        """Insert one instance. One with a key has its own statement: it may wait for another transaction."""
        if connection is None and entry.key is None:
            self._database.check_loop()
            return await self._singles.submit((entry, notify))
        [started] = await self.start_many([entry], connection, notify)
        return started

    async def start_many(self, entries: list[NewInstance], connection: object, notify: bool) -> list[int | Duplicate]:
        """Insert all entries other than duplicates, in one transaction, then notify workers."""
        if connection is not None:
            carrier = borrow(connection)
            await self._register_missing(entries)
            return await sql_functions.start_many(carrier, entries, notify=notify, schema=self._database.schema)
        results: Sequence[Started | Duplicate]
        if len(entries) <= FEW and all(entry.key is None for entry in entries):
            results = await retried(lambda: start(self._database, entries))
        else:
            results = await retried(lambda: self._insert_together(entries))
        if notify:
            self.announce([row for row in results if isinstance(row, Started)])
        self._emitter.started(entries, results)
        return [row if isinstance(row, Duplicate) else row.id for row in results]

    async def stream(
        self, entries: Iterator[NewInstance], notify: bool, make: Callable[[NewInstance, int], T]
    ) -> list[T]:
        """Insert many entries without keys in one transaction. While Postgres inserts a chunk, the next one is checked
        and encoded, and the results of the one before are made. If an entry is refused, none is inserted.
        """
        admitted: list[NewInstance] = []
        rows: list[Started] = []
        results: list[T] = []
        inserting: asyncio.Task[Reader] | None = None
        most = FIRST_STREAMED
        async with self._database.transaction(is_long=True) as session:
            try:
                while chunk := await _next_chunk(entries, most):
                    most = STREAMED
                    insert = prepare(session, chunk)
                    read = None if inserting is None else await inserting
                    inserting = asyncio.create_task(insert(), name="stepwell insert")
                    await asyncio.sleep(0)  # the statement is sent before anything else is done
                    if read is not None:
                        rows += read()
                        results += [make(admitted[i], rows[i].id) for i in range(len(results), len(rows))]
                    admitted += chunk
                if inserting is not None:
                    rows += (await inserting)()
            except BaseException:
                if inserting is not None:
                    inserting.cancel()
                    await asyncio.gather(inserting, return_exceptions=True)
                raise
        if notify:
            self.announce(rows)
        self._emitter.started(admitted, rows)
        return results + [make(admitted[i], rows[i].id) for i in range(len(results), len(rows))]

    def announce(self, started: Sequence[Started]) -> bool:
        """Notify workers of new rows; True if a worker of this process claims some at once."""
        counts = Counter(row.queue for row in started if not row.later)
        took = [self._notifier.notify_work(queue, count) for queue, count in counts.items()]
        if any(row.later for row in started):
            self._notifier.publish(notifications.DUE)
        return any(took)

    async def _insert_singles(self, singles: list[tuple[NewInstance, bool]]) -> list[int]:
        entries = [entry for entry, _ in singles]
        try:
            rows = await start(self._database, entries)
        except Contention:
            rows = await retried(lambda: start(self._database, entries))
        is_taken = self.announce([row for row, (_, notify) in zip(rows, singles, strict=True) if notify])
        if self._emitter.hooks.wanted:
            self._emitter.started(entries, rows)
        if is_taken:
            await asyncio.sleep(0)  # the worker sends its claim before the caller continues
        return [row.id for row in rows]

    async def _register_missing(self, entries: list[NewInstance]) -> None:
        """Register machines and limits before a start by SQL function: no worker may have registered them yet."""
        labels = {(entry.machine, entry.version) for entry in entries} - self._registered
        if labels:
            found = [self._registry.find(name, version) for name, version in sorted(labels)]
            await machines.register_missing(self._database, [d for d in found if d is not None],
                                            self._settings.retention)
            await limits.declare_missing(self._database, self._registry.limits.all())
            self._registered |= labels

    async def _insert_together(self, entries: list[NewInstance]) -> list[Started | Duplicate]:
        results: dict[int, Started | Duplicate] = {}
        pending = list(range(len(entries)))
        if len(entries) > CHUNK:  # the statement sorts each chunk; sorting all chunks avoids deadlocks between batches
            pending.sort(key=lambda i: (entries[i].tenant, entries[i].key or ""))
        async with self._database.transaction(is_long=len(entries) > FEW) as session:
            for _ in range(MOST_TRIES):
                for first in range(0, len(pending), CHUNK):
                    chunk = pending[first : first + CHUNK]
                    for row in await start(session, [entries[i] for i in chunk]):
                        results[chunk[row.position]] = row
                pending = [i for i in pending if i not in results]
                if not pending:
                    break
                # These keys were occupied; if the occupant has ended since then, the entry is tried again.
                pairs = [(entries[i].tenant, str(entries[i].key)) for i in pending]
                occupants = await instances.find_key_holders(session, pairs)
                for position, occupant in occupants.items():
                    results[pending[position]] = Duplicate(str(entries[pending[position]].key), occupant)
                pending = [i for i in pending if i not in results]
                if not pending:
                    break
            else:
                raise Contention("other instances released and took keys during every attempt; try again")
        return [results[i] for i in range(len(entries))]


async def _next_chunk(entries: Iterator[NewInstance], most: int) -> list[NewInstance]:
    """The next entries of one statement, checked in small slices, so that other tasks run in between."""
    chunk: list[NewInstance] = []
    text = 0
    while len(chunk) < most and text < LARGEST_TEXT and (some := list(islice(entries, SLICE))):
        chunk += some
        text += sum(len(entry.state) for entry in some)
        await asyncio.sleep(0)
    return chunk
