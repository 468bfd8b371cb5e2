"""Finds which outcomes of a batch the server refuses, or which wait for foreign locks; the rest is committed."""

from __future__ import annotations

from contextlib import suppress
from time import perf_counter
from typing import Protocol

from stepwell._core.store_errors import Contention, Misfit, Refusal
from stepwell._store.operations.commit import shape_of
from stepwell._worker.commit_queue import CommitQueue, QueuedCommit
from stepwell._worker.committing.uncommitted import Uncommitted
from stepwell._worker.lost_replies import Verdict

MOST_MISFITS = 5  # then an outcome is refused: the server takes others of its shape
PATIENCE = 0.3  # seconds in which a batch is halved to find outcomes that wait for foreign locks


class BatchCommitter(Protocol):
    """The committer, as isolation sees it."""

    async def commit_batch(self, batch: list[QueuedCommit]) -> None: ...


class Isolation:
    """Splits a batch that failed."""

    def __init__(self, committer: BatchCommitter, queue: CommitQueue, uncommitted: Uncommitted) -> None:
        self._committer = committer
        self._queue = queue
        self._uncommitted = uncommitted
        self.until: float | None = None  # of the current tick; None: it has not waited for locks yet

    async def separate(self, batch: list[QueuedCommit], error: Misfit) -> None:
        """Commit what the server takes, if it takes the first row or the last one. If not, no row is at fault, and all
        are kept. An outcome that fails beside committed ones is tried again, MOST_MISFITS times."""
        if len(batch) == 1:
            raise error
        for entry in (batch[0], batch[-1]):
            with suppress(Misfit):
                await self._committer.commit_batch([entry])
        rest = [entry for entry in batch if entry.is_open]
        if len(rest) == len(batch):
            raise error
        middle = (len(rest) + 1) // 2
        for half in (rest[:middle], rest[middle:]):
            if half:
                try:
                    await self._committer.commit_batch(half)
                except Misfit as failed:
                    self._suspect([entry for entry in half if entry.is_open], batch, failed)

    def _suspect(self, entries: list[QueuedCommit], batch: list[QueuedCommit], error: Misfit) -> None:
        """Retry entries that failed beside others. A failure is counted if an outcome of the same shape was taken. An
        entry that needs a table which the others do not need is kept: the table may be missing."""
        taken = {shape_of(entry.commit) for entry in batch if entry.verdict in (Verdict.COMMITTED, Verdict.GOES_ON)}
        for entry in entries:
            entry.misfits += shape_of(entry.commit) in taken
            if entry.misfits >= MOST_MISFITS:
                self._uncommitted.refuse(entry, error)
                continue
            self._uncommitted.retry_misfit(entry, error)

    async def isolate(self, batch: list[QueuedCommit], error: Refusal | Contention) -> None:
        """Halve a batch until the row is alone that Postgres refuses, or that another transaction has locked."""
        if len(batch) > 1:
            if isinstance(error, Contention):
                batch = await self._without_plain(batch)
                if self._is_over():
                    for entry in batch:
                        entry.is_apart = True
                        self._queue.put_back_later(entry)
                    return
            middle = (len(batch) + 1) // 2
            for half in (batch[:middle], batch[middle:]):
                if half:
                    await self._committer.commit_batch(half)
            return
        [entry] = batch
        if isinstance(error, Contention):
            entry.is_apart = True  # from now on no batch waits for its lock
            self._queue.put_back_later(entry)
            return
        self._uncommitted.refuse(entry, error)

    async def _without_plain(self, batch: list[QueuedCommit]) -> list[QueuedCommit]:
        """Commit the plain outcomes, which wait for no lock, if the batch has others too; returns those."""
        others = [entry for entry in batch if not entry.commit.is_plain]
        if not others or len(others) == len(batch):
            return batch
        await self._committer.commit_batch([entry for entry in batch if entry.commit.is_plain])
        return others

    def _is_over(self) -> bool:
        """Whether the tick has spent its time on finding outcomes that wait: each try waits for a lock, and all other
        outcomes wait for the tick."""
        now = perf_counter()
        if self.until is None:
            self.until = now + PATIENCE
        return now >= self.until
