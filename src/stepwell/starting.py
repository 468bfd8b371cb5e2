"""Inserting new instances, and telling the workers: many in one transaction, or single ones of one moment together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from stepwell._core.entries import NewInstance
from stepwell._core.faults import Contention
from stepwell._core.registry import Registry
from stepwell._runtime.emitter import Emitter
from stepwell._runtime.gatherer import Gatherer
from stepwell._runtime.notifier import Notifier
from stepwell._store import copies, doors, instances, limits, machines
from stepwell._store.borrowed import borrow
from stepwell._store.database import Database, Session
from stepwell._store.instances import Started
from stepwell._store.retries import MOST_TRIES, retried
from stepwell.config import Settings
from stepwell.errors import Duplicate

T = TypeVar("T")

CHUNK = 5_000  # entries of one statement
STREAMED = 2_000  # the same, while the next are prepared
FIRST_STREAMED = 400  # the same, of the first one, for which Postgres waits
LARGEST_TEXT = 64_000_000  # of the states in one statement, if they are streamed; a slice more at most
SLICE = 200  # entries that are checked before others may run


class Starting:
    """The inserts of a client; whoever started something is answered once it is durable."""

    def __init__(
        self, database: Database, registry: Registry, notifier: Notifier, emitter: Emitter, settings: Settings
    ) -> None:
        self._database = database
        self._registry = registry
        self._notifier = notifier
        self._emitter = emitter
        self._settings = settings
        self._introduced: set[tuple[str, int]] = set()  # machines that the database knows from us
        self._singles = Gatherer(self._insert_singles, lambda single: len(single[0].state))

    async def start(self, entry: NewInstance, connection: object, notify: bool) -> int | Duplicate:
        """Insert one. One with a key goes alone: it may have to wait for somebody's transaction."""
        if connection is None and entry.key is None:
            self._database.check_loop()
            return await self._singles.submit((entry, notify))
        [started] = await self.start_many([entry], connection, notify)
        return started

    async def start_many(self, entries: list[NewInstance], connection: object, notify: bool) -> list[int | Duplicate]:
        """Insert all that are no duplicates, in one transaction, then tell the workers."""
        if connection is not None:
            carrier = borrow(connection)
            await self._introduce(entries)
            return await doors.start_many(carrier, entries, notify=notify)
        answers: Sequence[Started | Duplicate]
        if len(entries) <= CHUNK and all(entry.key is None for entry in entries):
            answers = await retried(lambda: instances.start(self._database, entries))
        else:
            answers = await retried(lambda: self._insert_together(entries))
        if notify:
            self.announce([row for row in answers if isinstance(row, Started)])
        self._emitter.started(entries, answers)
        return [row if isinstance(row, Duplicate) else row.id for row in answers]

    async def stream(
        self, entries: Iterator[NewInstance], notify: bool, answer: Callable[[NewInstance, int], T]
    ) -> list[T]:
        """Insert many without keys in one transaction. While Postgres inserts some, the next are checked and encoded,
        and those before are answered. One that is refused on the way leaves nothing of the others.
        """
        admitted: list[NewInstance] = []
        rows: list[Started] = []
        answers: list[T] = []
        inserting: asyncio.Task[Callable[[], list[Started]]] | None = None
        most = FIRST_STREAMED
        async with self._database.transaction() as session:
            try:
                while chunk := await _next_of(entries, most):
                    most = STREAMED
                    insert = _made_ready(session, chunk)
                    read = None if inserting is None else await inserting
                    inserting = asyncio.create_task(insert(), name="stepwell insert")
                    await asyncio.sleep(0)  # it is sent before anything else is done
                    if read is not None:
                        rows += read()
                        answers += [answer(admitted[i], rows[i].id) for i in range(len(answers), len(rows))]
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
        return answers + [answer(admitted[i], rows[i].id) for i in range(len(answers), len(rows))]

    def announce(self, started: Sequence[Started]) -> bool:
        """Tell the workers of new rows; True if one of this process takes some at once."""
        counts = Counter(row.queue for row in started if not row.later)
        took = [self._notifier.announce_work(queue, count) for queue, count in counts.items()]
        if any(row.later for row in started):
            self._notifier.announce_due()
        return any(took)

    async def _insert_singles(self, singles: list[tuple[NewInstance, bool]]) -> list[int]:
        entries = [entry for entry, _ in singles]
        rows = await retried(lambda: instances.start(self._database, entries))
        is_taken = self.announce([row for row, (_, notify) in zip(rows, singles, strict=True) if notify])
        self._emitter.started(entries, rows)
        if is_taken:
            await asyncio.sleep(0)  # its claim is on its way before the caller goes on, whatever that does next
        return [row.id for row in rows]

    async def _introduce(self, entries: list[NewInstance]) -> None:
        """Make machines known to the database before a start through its doors: no worker may have come yet."""
        labels = {(entry.machine, entry.version) for entry in entries} - self._introduced
        if labels:
            found = [self._registry.find(name, version) for name, version in sorted(labels)]
            await machines.introduce(self._database, [d for d in found if d is not None], self._settings.retention)
            await limits.introduce(self._database, self._registry.limits.all())
            self._introduced |= labels

    async def _insert_together(self, entries: list[NewInstance]) -> list[Started | Duplicate]:
        answers: dict[int, Started | Duplicate] = {}
        pending = list(range(len(entries)))
        if len(entries) > CHUNK:  # within a chunk the statement sorts; two batches must not cross between chunks
            pending.sort(key=lambda i: (entries[i].tenant, entries[i].key or ""))
        async with self._database.transaction() as session:
            for _ in range(MOST_TRIES):
                for first in range(0, len(pending), CHUNK):
                    chunk = pending[first : first + CHUNK]
                    for row in await instances.start_keyed(session, [entries[i] for i in chunk]):
                        answers[chunk[row.position]] = row
                pending = [i for i in pending if i not in answers]
                if not pending:
                    break
                # Occupied a moment ago; who has left since then is tried once more.
                pairs = [(entries[i].tenant, str(entries[i].key)) for i in pending]
                occupants = await instances.find_occupants(session, pairs)
                for position, occupant in occupants.items():
                    answers[pending[position]] = Duplicate(str(entries[pending[position]].key), occupant)
                pending = [i for i in pending if i not in answers]
                if not pending:
                    break
            else:
                raise Contention("keys changed hands faster than they could be taken")
        return [answers[i] for i in range(len(entries))]


def _made_ready(
    session: Session, chunk: list[NewInstance]
) -> Callable[[], Coroutine[Any, Any, Callable[[], list[Started]]]]:
    """The insert of a chunk, ready to be sent; it gives how its answer is read: what can be done before and after it is
    not done while Postgres waits for the next one."""
    is_wide = copies.are_wide(chunk)
    arguments = instances.alike_arguments(chunk, copied=is_wide)
    if arguments is None:
        return partial(_insert, session, chunk)
    return partial(_insert_alike, session, chunk, arguments, copies.encoded(chunk) if is_wide else [])


async def _insert(session: Session, chunk: list[NewInstance]) -> Callable[[], list[Started]]:
    rows = await instances.start(session, chunk)
    return lambda: rows


async def _insert_alike(
    session: Session, chunk: list[NewInstance], arguments: tuple[object, ...], copied: list[bytes]
) -> Callable[[], list[Started]]:
    ids, later = await instances.insert_alike(session, arguments)
    if copied:
        await copies.copy(session, ids, copied)
    return partial(instances.inserted, chunk, ids, later)


async def _next_of(entries: Iterator[NewInstance], most: int) -> list[NewInstance]:
    """The next entries of one statement, checked in small slices, so that what is under way gets on."""
    chunk: list[NewInstance] = []
    text = 0
    while len(chunk) < most and text < LARGEST_TEXT and (some := list(islice(entries, SLICE))):
        chunk += some
        text += sum(len(entry.state) for entry in some)
        await asyncio.sleep(0)
    return chunk
