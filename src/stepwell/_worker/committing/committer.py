"""Group commit: an idle committer commits an outcome at once, a busy one all outcomes that arrived meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial

from stepwell._core.commit import Commit
from stepwell._core.instance import Claim
from stepwell._core.status import Status
from stepwell._core.store_errors import Contention, Misfit, Refusal, StoreFault
from stepwell._process import probes
from stepwell._process.service import STOP_GRACE, Service
from stepwell._process.stats import Stats
from stepwell._store.connection.pool import Database
from stepwell._store.operations.commit import CommitPaths, commit
from stepwell._store.operations.commit_result import CommitResult
from stepwell._worker.commit_queue import LARGEST_BATCH, CommitQueue, QueuedCommit, set_verdicts
from stepwell._worker.committing.announcer import Announcer
from stepwell._worker.committing.child_slots import ChildSlots
from stepwell._worker.committing.inbox_sweeper import InboxSweeper
from stepwell._worker.committing.isolation import Isolation
from stepwell._worker.committing.limit_slots import SlotReleases
from stepwell._worker.committing.uncommitted import Uncommitted
from stepwell._worker.lost_replies import COMMITTED, STILL_CLAIMED

MOST_APART = 4  # connections of one committer that may wait for other transactions at once
APART_PATIENCE = timedelta(milliseconds=200)


class Committer(Service):
    """Commits outcomes in batches. One bad row never fails its neighbours, and an outage loses none."""

    def __init__(
        self, database: Database, announcer: Announcer, stats: Stats,
        *, name: str = "committer", child_slots: ChildSlots | None = None, most_rows: int = LARGEST_BATCH,
    ) -> None:  # fmt: skip
        super().__init__(name)
        self._database = database
        self._announcer = announcer
        self._stats = stats
        self._child_slots = child_slots
        self.queue = CommitQueue(self, most_rows)
        self.slot_releases = SlotReleases(database, announcer, self)
        self.inbox_sweeper = InboxSweeper(database)
        self._uncommitted = Uncommitted(database, self.queue, announcer, self.slot_releases, stats)
        self._isolation = Isolation(self, self.queue, self._uncommitted)
        self._paths = CommitPaths()
        self.apart: set[asyncio.Task[None]] = set()
        self._connections = asyncio.Semaphore(MOST_APART)

    async def stop(self) -> None:
        await super().stop()
        await self.inbox_sweeper.stop(STOP_GRACE)

    def ended(self) -> None:
        self.queue.close()
        for task in (*self.apart, *self.slot_releases.tasks):
            task.cancel()

    async def tick(self) -> float | None:
        batch = self._without_apart(self.queue.take())
        if batch:
            self.queue.in_flight = len(batch)
            self._isolation.until = None
            try:
                if probes.hooks:
                    await probes.reach("committer.before_commit", ids=[e.commit.claim.id for e in batch])
                await self.commit_batch(batch)
            except BaseException as error:
                self.queue.put_back([entry for entry in batch if entry.is_open], error)
                raise
            finally:
                self.queue.in_flight = 0
        elif self.queue.pending:
            return 0.0
        pause = await self.slot_releases.admit() if self.slot_releases.free else None
        return 0.0 if self.queue.pending else pause

    def _without_apart(self, batch: list[QueuedCommit]) -> list[QueuedCommit]:
        """Commit some outcomes in tasks of their own: keys of children may wait for a caller's open transaction, and
        many children, or long texts, take long."""
        apart = [entry for entry in batch if entry.is_apart]
        for entry in apart:
            task = asyncio.create_task(self._commit_apart(entry), name="stepwell spawn")
            self.apart.add(task)
            task.add_done_callback(self.apart.discard)
        return [entry for entry in batch if not entry.is_apart] if apart else batch

    async def _commit_apart(self, entry: QueuedCommit) -> None:
        try:
            async with self._connections:
                if probes.hooks:
                    await probes.reach("committer.before_commit", ids=[entry.commit.claim.id])
                await self.commit_batch([entry], APART_PATIENCE)
        except StoreFault as error:
            self._database.outages.failed_once(f"{self.name} of {entry.commit.claim.label}", error)
            entry.note_outage(error)
            self.queue.put_back_later(entry)

    async def commit_batch(self, batch: list[QueuedCommit], lock_timeout: timedelta | None = None) -> None:
        """Commit a batch and set the verdicts; if it fails, find the outcomes at fault and commit the others."""
        if any(entry.future.cancelled() for entry in batch):  # since the tick began
            batch = [entry for entry in batch if not entry.future.cancelled()]
            if not batch:
                return
        commits = [entry.commit for entry in batch]
        send = partial(
            commit, self._database, commits, self._paths, lock_timeout=lock_timeout,
            is_long=lock_timeout is not None and any(entry.is_slow for entry in batch),
        )  # fmt: skip
        try:
            if self._child_slots is None:
                result = await send()
            else:
                result = await _with_slots(self._child_slots, commits, send)
        except (Refusal, Contention) as error:
            await self._isolation.isolate(batch, error)
            return
        except Misfit as error:
            await self._isolation.separate(batch, error)
            return
        rest: list[QueuedCommit] = []
        if result.rest:
            ids = {commit.claim.id for commit in result.rest}
            rest = [entry for entry in batch if entry.commit.claim.id in ids]
            batch = [entry for entry in batch if entry.commit.claim.id not in ids]
        if batch:
            await self._note(batch, result)
        if rest:
            if batch and probes.hooks:
                await probes.reach("committer.before_commit", ids=[entry.commit.claim.id for entry in rest])
            await self.commit_batch(rest)

    async def _note(self, batch: list[QueuedCommit], result: CommitResult) -> None:
        """Publish the committed outcomes, set their verdicts, and settle the uncommitted ones."""
        if result.leftovers:
            self.inbox_sweeper.sweep_soon(result.leftovers)
        if result.slots:
            self.slot_releases.add(result.slots)
        if result.is_as_sent:
            if probes.hooks:
                await probes.reach("committer.committed", ids=[entry.commit.claim.id for entry in batch])
            self._announcer.as_sent([entry.commit for entry in batch], result.freed_queues)
            for entry in batch:
                entry.verdict = STILL_CLAIMED if entry.commit.runs_ahead else COMMITTED
            self._stats.committed += len(batch)
            set_verdicts(batch)
        else:
            await self._note_each(batch, result)

    async def _note_each(self, batch: list[QueuedCommit], result: CommitResult) -> None:
        if probes.hooks:
            await probes.reach("committer.committed", ids=[row.id for row in result.committed])
        rows = {row.id: row for row in result.committed}
        self._announcer.committed([entry.commit for entry in batch], result)
        committed, missing = [], []
        for entry in batch:
            row = rows.get(entry.commit.claim.id)
            if row is None:
                missing.append(entry)
            else:
                entry.verdict = STILL_CLAIMED if row.status is Status.EXECUTING else COMMITTED
                committed.append(entry)
        self._stats.committed += len(committed)
        set_verdicts(committed)
        if missing:
            await self._uncommitted.settle(missing)


async def _with_slots(
    child_slots: ChildSlots, commits: list[Commit], send: Callable[..., Awaitable[CommitResult]]
) -> CommitResult:
    """Commit with slots reserved for children, so that they are inserted already claimed."""
    reserved = child_slots.reserve(commits)
    inserted_claimed: Sequence[Claim] = ()
    try:
        result = await send(reserved=reserved)
        inserted_claimed = result.inserted_claimed
    finally:
        if reserved is not None:
            child_slots.settle(reserved, inserted_claimed)
    return result
