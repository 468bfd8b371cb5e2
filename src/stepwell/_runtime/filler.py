"""Asks one question per item: pulls items in chunks, and appends each chunk durably before the next is pulled.

A step that is run again after a crash gives its items again: those that were asked are passed over, by their number.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Protocol, TypeVar

from stepwell import _probes
from stepwell._core.faults import Refusal, StoreFault
from stepwell._core.questions import Common, Question, question
from stepwell._core.transition import common_of, target
from stepwell._runtime.caller import Caller
from stepwell._runtime.notifier import Notifier
from stepwell._runtime.runs import Run
from stepwell._store import units
from stepwell._store.database import Database
from stepwell._store.units import Appended, Filling
from stepwell.errors import AwaitTimeout, InvalidOutcome, ItemFailed, RefusedByDatabase
from stepwell.outcomes import AskEach, Next

log = logging.getLogger("stepwell")

T = TypeVar("T")

CHUNK = 500  # items of one transaction
LARGEST_TEXT = 4_000_000  # of the requests in one transaction, as far as they are not larger
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 5.0  # between tries while the database is away


class Filler:
    """Fills the units of `Ask.each`. Memory holds one chunk, however many items there are."""

    def __init__(
        self, database: Database, caller: Caller, notifier: Notifier, expect_due: Callable[[float], None]
    ) -> None:
        self._database = database
        self._caller = caller
        self._notifier = notifier
        self._expect_due = expect_due

    async def fill(self, run: Run, outcome: AskEach) -> AskEach | Next | AwaitTimeout | ItemFailed:
        """Ask about every item; what is left to commit is the park, what follows if there were no items, or the end:
        the time of a question was over, or an item has failed, before the last one was asked."""
        source = _source(outcome.items, run, self._caller)
        try:
            return await self._fill(run, outcome, source)
        finally:
            await source.close()

    async def _fill(self, run: Run, outcome: AskEach, source: _Source) -> AskEach | Next | AwaitTimeout | ItemFailed:
        common = common_of(outcome, run.claim.step, run.surroundings.registry)
        target(run.definition, "then", outcome.then)  # before anybody is asked
        asked = await self._asked_before(run)
        place, is_over = 0, False
        while not is_over:
            items = await source.pull(CHUNK)
            is_over = len(items) < CHUNK
            fresh = items[max(0, asked - place) :]
            first = place + len(items) - len(fresh)
            place += len(items)
            for chunk in _chunks(fresh, first, common, run.surroundings.max_payload):
                appended = await self._append(run, common, first, chunk)
                if appended is None:
                    return outcome  # the claim is lost: its commit will be stale
                if appended.timed_out is not None:
                    return AwaitTimeout(run.definition.name, common.step, appended.timed_out)
                if appended.ended is not None:
                    return ItemFailed(run.definition.name, common.step, run.claim.id)
                first += len(chunk)
            items, fresh = [], []  # while the next ones are pulled, these are not held
            await asyncio.sleep(0)
        return outcome if max(place, asked) else Next(outcome.then, state=outcome.state)

    async def _asked_before(self, run: Run) -> int:
        """How many questions an earlier attempt of this step has asked."""
        if not run.claim.attempt:
            return 0
        held = await self._through_outages(run, lambda: self._hold(run))
        return 0 if held is None else held.opened

    async def _hold(self, run: Run) -> Filling | None:
        async with self._database.transaction() as session:
            return await units.hold(session, run.claim)

    async def _append(self, run: Run, common: Common, first: int, chunk: list[Question]) -> Appended | None:
        """Ask about some items; None if the claim is lost."""
        appended = await self._through_outages(run, lambda: self._append_once(run, common, first, chunk))
        if appended is None:
            return None
        if _probes.hooks:
            await _probes.reach("filler.appended", id=run.claim.id, number=len(chunk))
        if appended.out and common.sends:
            self._notifier.announce_dispatch(common.transport)
        if appended.out and common.timeout is not None:
            self._expect_due(common.timeout.total_seconds())
        return appended

    async def _through_outages(self, run: Run, act: Callable[[], Awaitable[T]]) -> T:
        """Do it when the database is there: an outage is no fault of the step. What has landed is not done twice."""
        pause = FIRST_PAUSE
        while True:
            try:
                return await act()
            except Refusal as error:
                raise RefusedByDatabase(str(error)) from error
            except StoreFault as error:
                log.warning("filler: %s: can not ask yet: %s", run.claim.label, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _append_once(self, run: Run, common: Common, first: int, chunk: list[Question]) -> Appended | None:
        async with self._database.transaction() as session:
            held = await units.hold(session, run.claim)
            return None if held is None else await units.append(session, run.claim, held.unit_id, common, first, chunk)


def _chunks(items: list[Any], first: int, common: Common, max_payload: int) -> Iterator[list[Question]]:
    """Questions about items, as many at a time as fit into one transaction."""
    chunk: list[Question] = []
    text = 0
    for place, item in enumerate(items, first):
        asked = question(item, common, max_payload, f"items[{place}]")
        if chunk and text + len(asked.request) > LARGEST_TEXT:
            yield chunk
            chunk, text = [], 0
        chunk.append(asked)
        text += len(asked.request)
    if chunk:
        yield chunk


class _Source(Protocol):
    """Where items come from."""

    async def pull(self, number: int) -> list[Any]: ...
    async def close(self) -> None: ...


def _source(items: Any, run: Run, caller: Caller) -> _Source:
    """How to pull the next so many items: those of a sync step in a thread."""
    if isinstance(items, AsyncIterable):
        return _Awaited(items)
    if not isinstance(items, Iterable) or isinstance(items, str | bytes):
        raise InvalidOutcome("items", f"expected items to ask about, got {type(items).__name__}")
    return _Plain(items, run, caller)


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
        """Let a generator clear up, wherever it stands: who can not be asked about the rest holds no file open."""
        close = getattr(self._iterator, "aclose", None)
        if close is not None:
            await close()


class _Plain:
    def __init__(self, items: Iterable[Any], run: Run, caller: Caller) -> None:
        self._iterator = iter(items)
        self._run = run
        self._caller = caller
        self._in_use = threading.Lock()
        self._is_over = False

    async def pull(self, number: int) -> list[Any]:
        pulled = await self._call(self._pull, number)
        assert isinstance(pulled, list)  # noqa: S101 - it is what `_pull` returns
        return pulled

    async def close(self) -> None:
        """As above. If this one was given up while a thread pulls, that one closes it when it is through."""
        self._is_over = True
        if hasattr(self._iterator, "close"):
            await self._call(self._close)

    async def _call(self, function: Callable[..., Any], *args: Any) -> object:
        if self._run.step.is_async:
            return function(*args)
        return await self._caller.call(self._run.claim, self._run.step, function, False, *args)

    def _pull(self, number: int) -> list[Any]:
        with self._in_use:
            pulled = list(islice(self._iterator, number))
        if self._is_over:
            self._close()
        return pulled

    def _close(self) -> None:
        if self._in_use.acquire(blocking=False):
            try:
                self._iterator.close()  # type: ignore[attr-defined]  # only what has it is closed
            finally:
                self._in_use.release()
