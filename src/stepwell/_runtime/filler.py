"""Asks one question per item: pulls items in chunks, and appends each chunk durably before the next is pulled.

A step that is run again after a crash gives its items again: those that were asked are passed over, by their number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

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
from stepwell.errors import AwaitTimeout, InvalidOutcome, RefusedByDatabase
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

    async def fill(self, run: Run, outcome: AskEach) -> AskEach | Next | AwaitTimeout:
        """Ask about every item; what is left to commit is the park, what follows if there were no items, or the end:
        the time of a question was over before the last one was asked, and the instance is to fail then."""
        common = common_of(outcome, run.claim.step, run.surroundings.registry)
        target(run.definition, "then", outcome.then)  # before anybody is asked
        pull = _puller(outcome.items, run, self._caller)
        asked = await self._asked_before(run)
        place, is_over = 0, False
        while not is_over:
            items = await pull(CHUNK)
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
                first += len(chunk)
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


def _puller(items: Any, run: Run, caller: Caller) -> Any:
    """How to pull the next so many items: those of a sync step in its thread."""
    if isinstance(items, AsyncIterable):
        return _pull_async(aiter(items))
    if not isinstance(items, Iterable) or isinstance(items, str | bytes):
        raise InvalidOutcome("items", f"expected items to ask about, got {type(items).__name__}")
    iterator = iter(items)

    async def pull(number: int) -> list[Any]:
        if run.step.is_async:
            return list(islice(iterator, number))
        pulled = await caller.call(run.claim, run.step, list, False, islice(iterator, number))
        assert isinstance(pulled, list)  # noqa: S101 - it is what `list` returns
        return pulled

    return pull


def _pull_async(iterator: AsyncIterator[Any]) -> Any:
    async def pull(number: int) -> list[Any]:
        pulled: list[Any] = []
        async for item in iterator:
            pulled.append(item)
            if len(pulled) == number:
                break
        return pulled

    return pull
