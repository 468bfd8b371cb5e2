"""Fills await units of `Ask.each`: pulls items in chunks, and stores each chunk before it pulls the next one.

A step that runs again after a crash produces its items again: those with a stored interaction are compared with it,
and skipped.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Protocol, TypeAlias, TypeVar

from stepwell._core.await_unit import Common, NewInteraction, apart, new_interaction
from stepwell._core.store_errors import Refusal
from stepwell._core.transition import common_of, target
from stepwell._notify.notifier import Notifier
from stepwell._process import probes
from stepwell._store import await_units
from stepwell._store.await_units import Appended, Filling
from stepwell._store.connection.pool import Database
from stepwell._worker.running.invoke import Invoker
from stepwell._worker.running.step_run import Run, check_shape
from stepwell._worker.wakeups import Wakeups
from stepwell.errors import AwaitTimeout, InvalidOutcome, ItemFailed, RefusedByDatabase, SourceChanged
from stepwell.outcomes import AskEach, Next

log = logging.getLogger("stepwell")

T = TypeVar("T")
Ended: TypeAlias = AwaitTimeout | ItemFailed | SourceChanged

CHUNK = 500  # items of one transaction
LARGEST_TEXT = 4_000_000  # characters of the requests in one transaction; a single one may be larger


class IncrementalAsk:
    """Fills the units of `Ask.each`, with only one chunk of items in memory."""

    def __init__(
        self, database: Database, invoker: Invoker, notifier: Notifier, wakeups: Wakeups
    ) -> None:
        self._database = database
        self._invoker = invoker
        self._notifier = notifier
        self._wakeups = wakeups

    async def fill(self, run: Run, outcome: AskEach) -> AskEach | Next | Ended:
        """Store an interaction for every item. Returns the outcome to commit: the park, or Next if there were no items.

        Or the error that ends the instance: before the last item was stored, an interaction timed out or an item
        failed; or the source has produced other items than before.
        """
        source = _source(outcome.items, run, self._invoker)
        try:
            return await self._fill(run, outcome, source)
        finally:
            await source.close()

    async def check_shape(self, run: Run) -> None:
        """Raise Unfit if an earlier attempt stored items, and the pipeline has another shape now. A run without stored
        items may start with any shape."""
        if run.definition.pipeline is not None and run.claim.attempt:
            check_shape(run, await self._through_outages(run, lambda: await_units.item_step(self._database, run.claim)))

    async def _fill(self, run: Run, outcome: AskEach, source: _Source) -> AskEach | Next | Ended:
        common = common_of(outcome, run.claim.step, run.surroundings.registry)
        target(run.definition, "then", outcome.then)  # before any item is stored
        asked = await self._asked_before(run)
        place, is_exhausted = 0, False
        while not is_exhausted:
            items = await source.pull(CHUNK)
            is_exhausted = len(items) < CHUNK
            for chunk in _chunks(items, place, common, run.surroundings.max_payload):
                appended = await self._append(run, common, place, chunk)
                if appended is None:
                    return outcome  # the claim is lost: its commit will be stale
                if (ended := _end(run, common, appended)) is not None:
                    return ended
                place += len(chunk)
            items = []  # frees their memory before the next pull
            await asyncio.sleep(0)
        if place < asked:
            appended = await self._append(run, common, place, [])
            return (appended and _end(run, common, appended)) or outcome
        return outcome if place else Next(outcome.then, state=outcome.state)

    async def _asked_before(self, run: Run) -> int:
        """How many interactions an earlier attempt of this step has stored."""
        if not run.claim.attempt:
            return 0
        held = await self._through_outages(run, lambda: self._hold(run))
        return 0 if held is None else held.opened

    async def _hold(self, run: Run) -> Filling | None:
        async with self._database.transaction() as session:
            return await await_units.hold(session, run.claim)

    async def _append(self, run: Run, common: Common, first: int, chunk: list[NewInteraction]) -> Appended | None:
        """Store a chunk; an empty one tells that the source has ended. None if the claim is lost."""
        appended = await self._through_outages(run, lambda: self._append_once(run, common, first, chunk))
        if appended is None:
            return None
        if appended.number and probes.hooks:
            await probes.reach("ask_each.appended", id=run.claim.id, number=appended.number)
        if appended.out and common.sends:
            self._notifier.notify_dispatch(common.transport)
        if appended.out and common.timeout is not None:
            self._wakeups.due_in(common.timeout.total_seconds())
        return appended

    async def _through_outages(self, run: Run, act: Callable[[], Awaitable[T]]) -> T:
        """Await `act()`, repeated through outages; what an earlier try has stored is not stored twice."""
        async def once() -> T:
            try:
                return await act()
            except Refusal as error:
                raise RefusedByDatabase(str(error)) from error

        return await self._database.outages.outlast(f"ask_each of {run.claim.label}", once)

    async def _append_once(self, run: Run, common: Common, first: int, chunk: list[NewInteraction]) -> Appended | None:
        async with self._database.transaction() as session:
            held = await await_units.hold(session, run.claim)
            return None if held is None else await await_units.append(session, run.claim, held.unit_id, common, first,
                                                                      chunk)


def _end(run: Run, common: Common, appended: Appended) -> Ended | None:
    """Why the unit ended before its last item was stored, if it did."""
    name = run.definition.name
    if appended.timed_out is not None:
        return AwaitTimeout(name, common.step, appended.timed_out)
    if appended.ended is not None:
        return ItemFailed(name, common.step, run.claim.id)
    if appended.differs is not None and appended.asked is not None:
        asked, given = apart(appended.asked, appended.given or "")
        return SourceChanged(name, common.step, appended.differs, asked, None if appended.given is None else given)
    return None


def _chunks(items: list[Any], first: int, common: Common, max_payload: int) -> Iterator[list[NewInteraction]]:
    """The interactions for items, in chunks that fit into one transaction."""
    chunk: list[NewInteraction] = []
    text = 0
    for place, item in enumerate(items, first):
        asked = new_interaction(item, common, max_payload, f"items[{place}]")
        if chunk and text + len(asked.request) > LARGEST_TEXT:
            yield chunk
            chunk, text = [], 0
        chunk.append(asked)
        text += len(asked.request)
    if chunk:
        yield chunk


class _Source(Protocol):
    """A source of items."""

    async def pull(self, number: int) -> list[Any]: ...
    async def close(self) -> None: ...


def _source(items: Any, run: Run, invoker: Invoker) -> _Source:
    """A source for these items; it iterates over those of a sync step in a thread."""
    if isinstance(items, AsyncIterable):
        return _Awaited(items)
    if not isinstance(items, Iterable) or isinstance(items, str | bytes):
        raise InvalidOutcome("items", f"expected items to ask about, got {type(items).__name__}")
    return _Plain(items, run, invoker)


class _Awaited:
    def __init__(self, items: AsyncIterable[Any]) -> None:
        self._iterator = aiter(items)

    async def pull(self, number: int) -> list[Any]:
        pulled: list[Any] = []
        async for item in self._iterator:
            pulled.append(item)
            if len(pulled) == number:
                break
        return pulled

    async def close(self) -> None:
        """Close a generator, so that it can release its resources, such as open files."""
        close = getattr(self._iterator, "aclose", None)
        if close is not None:
            await close()


class _Plain:
    def __init__(self, items: Iterable[Any], run: Run, invoker: Invoker) -> None:
        self._iterator = iter(items)
        self._run = run
        self._invoker = invoker
        self._in_use = threading.Lock()
        self._is_closed = False

    async def pull(self, number: int) -> list[Any]:
        pulled = await self._call(self._pull, number)
        assert isinstance(pulled, list)  # noqa: S101 - it is what `_pull` returns
        return pulled

    async def close(self) -> None:
        """As above. If a thread is still pulling, that thread closes the iterator afterwards."""
        self._is_closed = True
        if hasattr(self._iterator, "close"):
            await self._call(self._close)

    async def _call(self, function: Callable[..., Any], *args: Any) -> object:
        if self._run.step.is_async:
            return function(*args)
        return await self._invoker.call(self._run.claim, self._run.step, function, False, *args)

    def _pull(self, number: int) -> list[Any]:
        with self._in_use:
            pulled = list(islice(self._iterator, number))
        if self._is_closed:
            self._close()
        return pulled

    def _close(self) -> None:
        if self._in_use.acquire(blocking=False):
            try:
                self._iterator.close()  # type: ignore[attr-defined]  # called only if it has `close`
            finally:
                self._in_use.release()
