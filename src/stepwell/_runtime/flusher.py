"""Natural group commit: idle, an outcome is committed at once; busy, what came meanwhile goes into the next commit."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from enum import Enum
from time import perf_counter
from typing import Protocol

import msgspec

from stepwell import _probes
from stepwell._core.commits import Commit
from stepwell._core.faults import Contention, Outage, Refusal, StoreFault
from stepwell._core.records import Claim
from stepwell._core.status import Status
from stepwell._runtime.announcer import Announcer
from stepwell._runtime.landing import goes_on, has_landed, is_ours
from stepwell._runtime.nursery import Nursery
from stepwell._runtime.offers import Offers
from stepwell._runtime.tally import Tally
from stepwell._service import STOP_GRACE, Service
from stepwell._store import flushes, instances, signals
from stepwell._store.database import Database
from stepwell._store.flushes import Flushed
from stepwell.errors import RefusedByDatabase

log = logging.getLogger("stepwell")

LARGEST_BATCH = 1_000
LARGEST_TEXT = 16_000_000  # characters of states, results and errors in one batch
AT_ONCE = 32  # steps that begin, or go on, before the loop turns to other things: so a commit never waits for all
FIRST_PATIENCE = 0.005  # with a row that a foreign transaction holds
LONGEST_PATIENCE = 0.1
WARINESS = 1.0  # after a bare commit had to wait for somebody's transaction: it may not be the only one
ITEMS_LAST = 1.0  # after answers went on by themselves: their ends are counted another way than those of children
FEW = 16  # bare outcomes, that are not worth a statement of their own beside others
MOST_APART = 4  # of the worker's connections, that may wait for transactions that are not the engine's
APART_PATIENCE = timedelta(milliseconds=200)


class Verdict(Enum):
    """How a commit ended."""

    COMMITTED = "committed"
    GOES_ON = "goes on"  # committed, and the row is still in our hands
    STALE = "stale"  # the claim was no longer ours; nothing of the outcome is visible


class Answer(Protocol):
    """Who waits for a verdict: a future, or what stands for one."""

    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def cancel(self) -> object: ...
    def set_result(self, result: Verdict, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class _Entry(msgspec.Struct, eq=False, gc=False):
    """One commit on its way, and who waits for it."""

    commit: Commit
    answer: Answer
    doubted: Commit | None  # what may have landed: an earlier try that ended without an answer
    length: int  # of its text
    verdict: Verdict | None = None  # known; who waits may not have been told yet
    patience: float = FIRST_PATIENCE
    is_resting: bool = False  # its row is locked by somebody else; it comes back by itself


class Flusher(Service):
    """Commits outcomes in batches. One bad row never fails its neighbours, and an outage loses none."""

    def __init__(
        self, database: Database, announcer: Announcer, tally: Tally,
        *, name: str = "flusher", nursery: Nursery | None = None, most_rows: int = LARGEST_BATCH,
    ) -> None:  # fmt: skip
        super().__init__(name)
        self._nursery = nursery
        self._most_rows = most_rows
        self._database = database
        self._announcer = announcer
        self._tally = tally
        self._pending: list[_Entry] = []
        self._text = 0  # characters of what is pending; what comes again is not counted
        self._alone: set[asyncio.Task[None]] = set()
        self._apart = asyncio.Semaphore(MOST_APART)
        self._leftovers: list[int] = []  # instances that are done, with inboxes to be dropped
        self.offers = Offers(database, announcer.may_run)
        self._sweeping: asyncio.Task[None] | None = None
        self._is_over = False
        self._wary_until = 0.0  # rows are locked, or passed over, before anything is written
        self._items_until = 0.0  # ends are counted in a transaction, and not by the statement that commits them
        self._flying = 0  # commits that the current tick has taken

    def start(self, after: float | None = 0.0) -> None:
        self._make_answer = asyncio.get_running_loop().create_future  # to ask for the loop each time costs as much
        super().start(after)

    async def stop(self) -> None:
        await super().stop()
        if self._sweeping is not None:
            await asyncio.wait([self._sweeping], timeout=STOP_GRACE)

    def ended(self) -> None:
        """Leave nobody waiting for a flush that will not come."""
        self._is_over = True
        for entry in self._pending:
            entry.answer.cancel()
        self._pending = []  # an entry leads back to here, and is hidden from the collector
        for alone in self._alone:
            alone.cancel()

    @property
    def waiting(self) -> int:
        """Outcomes submitted and not yet durable."""
        return len(self._pending) + self._flying

    @property
    def is_laden(self) -> bool:
        """Whether what waits is more text than two commits take: it is in memory, and nothing should come to it."""
        return self._text > 2 * LARGEST_TEXT

    def submit(self, commit: Commit, *, doubted: Commit | None = None) -> asyncio.Future[Verdict]:
        """Commit an outcome; the answer raises RefusedByDatabase if Postgres refuses this very one.

        With `doubted`, it is committed instead of that one, whose answer was lost, unless that one has landed.
        """
        answer = self._make_answer()
        self._put(_Entry(commit, answer, doubted, commit.length))
        return answer

    def take_over(self, commit: Commit, answer: Answer) -> None:
        """Commit an outcome that nobody's task waits for."""
        self._put(_Entry(commit, answer, None, commit.length))

    def _put(self, entry: _Entry) -> None:
        if self._is_over:
            raise asyncio.CancelledError
        self._pending.append(entry)
        self._text += entry.length
        if not self._woken:
            self.wake()

    async def tick(self) -> float | None:
        batch = self._next_batch()
        batch = self._one_per_row([entry for entry in batch if not entry.answer.cancelled()])
        batch = self._without_keyed_spawns(batch)
        if not batch:
            return 0.0 if self._pending else await self.offers.make()
        self._flying = len(batch)
        try:
            if _probes.hooks:
                await _probes.reach("flusher.before_commit", ids=[e.commit.claim.id for e in batch])
            await self._flush_apart(batch)
        except BaseException as error:
            unanswered = [
                entry for entry in batch
                if entry.verdict is None and not entry.is_resting and not entry.answer.done()
            ]  # fmt: skip
            self._keep(unanswered, doubtful=isinstance(error, Outage))
            raise
        finally:
            self._flying = 0
        again = await self.offers.make()
        return 0.0 if self._pending else again

    def _next_batch(self) -> list[_Entry]:
        """What came first, as far as it fits into one statement, each child of a spawn being one of its rows."""
        batch, text, rows = self._pending[:LARGEST_BATCH], 0, 0
        for number, entry in enumerate(batch):
            children = entry.commit.children
            rows += 1 if children is None else len(children)
            if (text + entry.length > LARGEST_TEXT or rows > self._most_rows) and number:
                batch = batch[:number]
                break
            text += entry.length
        self._pending = self._pending[len(batch) :]
        self._text = max(self._text - text, 0) if self._pending else 0
        return batch

    def _one_per_row(self, batch: list[_Entry]) -> list[_Entry]:
        """Leave the next outcome of a row for later while the answer to one before it is lost: together, what hangs on
        the first would be written again with what the second has left of the row."""
        if len({entry.commit.claim.id for entry in batch}) == len(batch):
            return batch
        first: dict[int, _Entry] = {}
        for entry in batch:
            first.setdefault(entry.commit.claim.id, entry)
        self._pending = [entry for entry in batch if first[entry.commit.claim.id] is not entry] + self._pending
        return list(first.values())

    def _without_keyed_spawns(self, batch: list[_Entry]) -> list[_Entry]:
        """Commit spawns of keyed children apart: inserting a key may wait for a caller's open transaction."""
        others = []
        for entry in batch:
            if entry.commit.children is None or not entry.commit.spawns_keys:
                others.append(entry)
                continue
            alone = asyncio.create_task(self._flush_alone(entry), name="stepwell spawn")
            self._alone.add(alone)
            alone.add_done_callback(self._alone.discard)
        return others

    async def _flush_alone(self, entry: _Entry) -> None:
        try:
            async with self._apart:
                if _probes.hooks:
                    await _probes.reach("flusher.before_commit", ids=[entry.commit.claim.id])
                await self._flush([entry], APART_PATIENCE)
        except Contention as error:
            log.debug("flusher: %s: %s", entry.commit.claim.label, error)
            self._bring_again(entry)
        except StoreFault as error:
            log.warning("flusher: %s: %s; trying again", entry.commit.claim.label, error)
            if isinstance(error, Outage):
                entry.doubted = entry.doubted or entry.commit
            self._bring_again(entry)

    def _keep(self, entries: list[_Entry], *, doubtful: bool) -> None:
        """Put entries back in front: an outage loses no outcome."""
        if doubtful:
            for entry in entries:
                entry.doubted = entry.doubted or entry.commit
        self._pending = entries + self._pending

    async def _flush_apart(self, batch: list[_Entry]) -> None:
        """Commit what is bare the short way, and what is not the long one; together, if there are few of the first."""
        if perf_counter() < self._wary_until:
            await self._flush(batch)
            return
        bare = [entry for entry in batch if entry.commit.is_bare]
        if len(bare) == len(batch):
            await self._flush(bare, barely=True)
        elif len(bare) <= FEW:
            await self._flush(batch)
        else:
            await self._flush(bare, barely=True)
            await self._flush([entry for entry in batch if not entry.commit.is_bare])

    async def _flush(
        self, batch: list[_Entry], lock_timeout: timedelta | None = None, *, barely: bool = False
    ) -> None:
        try:
            flushed = await self._send([entry.commit for entry in batch], lock_timeout, barely=barely)
        except Refusal as error:
            await self._isolate(batch, error)
            return
        if flushed.was_hindered:
            self._wary_until = perf_counter() + WARINESS
        if flushed.has_items:
            self._items_until = perf_counter() + ITEMS_LAST
        if flushed.is_partial and not flushed.committed:
            await self._flush(batch)
            return
        self._sweep_soon(flushed.leftovers)
        self.offers.add(flushed.slots)
        if flushed.is_as_meant:
            await self._note_as_meant(batch, flushed.freed_queues)
        else:
            await self._note(batch, flushed)

    async def _send(self, commits: list[Commit], lock_timeout: timedelta | None, *, barely: bool) -> Flushed:
        """Commit, with slots for children that there is room for."""
        reserved = None if self._nursery is None else self._nursery.reserve(commits)
        born: list[Claim] = []
        try:
            flushed = await flushes.flush(
                self._database, commits, lock_timeout=lock_timeout, barely=barely,
                counting=perf_counter() >= self._items_until, reserved=reserved,
            )  # fmt: skip
            born = flushed.born
        finally:
            if reserved is not None and self._nursery is not None:
                self._nursery.settle(reserved, born)
        return flushed

    async def _note(self, batch: list[_Entry], flushed: Flushed) -> None:
        """Answer those that are committed, and look after the others."""
        if _probes.hooks:
            await _probes.reach("flusher.committed", ids=[row.id for row in flushed.committed])
        rows = {row.id: row for row in flushed.committed}
        self._announcer.committed([entry.commit for entry in batch], flushed)
        answered, missing = [], []
        for entry in batch:
            row = rows.get(entry.commit.claim.id)
            if row is None:
                missing.append(entry)
            else:
                entry.verdict = Verdict.GOES_ON if row.status is Status.EXECUTING else Verdict.COMMITTED
                answered.append(entry)
        self._tally.committed += len(answered)
        self._tell(answered)
        if missing and flushed.is_partial:
            if _probes.hooks:
                await _probes.reach("flusher.before_commit", ids=[e.commit.claim.id for e in missing])
            await self._flush(missing)
        elif missing:
            await self._settle(missing)

    async def _note_as_meant(self, batch: list[_Entry], freed_queues: list[str]) -> None:
        """Answer a batch that is committed whole, with no consequence but what its commits say, and its parents."""
        if _probes.hooks:
            await _probes.reach("flusher.committed", ids=[entry.commit.claim.id for entry in batch])
        self._announcer.as_meant([entry.commit for entry in batch])
        self._announcer.may_run(freed_queues)
        for entry in batch:
            entry.verdict = Verdict.GOES_ON if entry.commit.goes_on else Verdict.COMMITTED
        self._tally.committed += len(batch)
        self._tell(batch)

    def _sweep_soon(self, inboxes: list[int]) -> None:
        self._leftovers += inboxes
        if inboxes and (self._sweeping is None or self._sweeping.done()):
            self._sweeping = asyncio.create_task(self._sweep(), name="stepwell sweep")

    async def _sweep(self) -> None:
        """Drop the inboxes of what is done, while nobody waits for it; what is left over in an outage is pruned."""
        while self._leftovers:
            dropped, self._leftovers = self._leftovers, []
            try:
                await signals.drop(self._database, dropped, alone=True)
            except StoreFault as error:
                log.debug("flusher: %d inboxes stay until they are pruned: %s", len(dropped), error)

    def _tell(self, answered: list[_Entry]) -> None:
        """Answer those who wait, some at a time."""
        for entry in answered[:AT_ONCE]:
            try:
                if not entry.answer.done():
                    entry.answer.set_result(entry.verdict or Verdict.COMMITTED)
            except Exception:  # its neighbours are told all the same
                log.exception("flusher: %s: its answer could not be told", entry.commit.claim.label)
        if len(answered) > AT_ONCE:
            asyncio.get_running_loop().call_soon(self._tell, answered[AT_ONCE:])

    async def _isolate(self, batch: list[_Entry], error: Refusal) -> None:
        """Halve a refused batch until the row is alone that Postgres does not take."""
        if len(batch) > 1:
            middle = len(batch) // 2
            await self._flush(batch[:middle])
            await self._flush(batch[middle:])
            return
        [entry] = batch
        self._tally.refused += 1
        log.warning("flusher: %s: refused by the database: %s", entry.commit.claim.label, error)
        if not entry.answer.done():
            entry.answer.set_exception(RefusedByDatabase(str(error)))

    async def _settle(self, entries: list[_Entry]) -> None:
        """Find out about commits that did not answer: landed before, locked by somebody else, or no longer ours."""
        traces = await instances.verify(self._database, [entry.commit.claim.id for entry in entries])
        for entry in entries:
            trace = traces.get(entry.commit.claim.id)
            if is_ours(entry.commit.claim, trace):
                self._bring_again(entry)
            elif entry.doubted is not None and trace is not None and goes_on(entry.doubted, trace):
                self._answer(entry, Verdict.GOES_ON)
            elif entry.doubted is not None and trace is not None and has_landed(entry.commit, trace):
                self._announcer.landed(entry.doubted)
                self._answer(entry, Verdict.COMMITTED)
                if (limit := entry.commit.claim.concurrency_limit) is not None:
                    self.offers.add([limit])  # nobody may have been let go for it
            else:
                log.warning("flusher: %s: stale, its claim is no longer ours", entry.commit.claim.label)
                self._announcer.stale(entry.commit)
                self._answer(entry, Verdict.STALE)

    def _bring_again(self, entry: _Entry) -> None:
        """Try again soon: a transaction that is not the engine's holds a row, and no batch waits for it."""
        pause, entry.patience = entry.patience, min(entry.patience * 2, LONGEST_PATIENCE)
        entry.is_resting = True

        def again() -> None:
            entry.is_resting = False
            if self._is_over:
                entry.answer.cancel()
                return
            self._pending.append(entry)
            self.wake()

        asyncio.get_running_loop().call_later(pause, again)

    def _answer(self, entry: _Entry, verdict: Verdict) -> None:
        if verdict is Verdict.STALE:
            self._tally.stale += 1
        else:
            self._tally.committed += 1
        entry.verdict = verdict
        self._tell([entry])
