"""Isolates outcomes that the server refuses, or with locked rows, and commits the rest of the batch."""

from __future__ import annotations

from contextlib import suppress
from time import perf_counter
from typing import Protocol

from stepwell._core.store_errors import Contention, Misfit, Refusal
from stepwell._store.operations.commit import shape_of
from stepwell._worker.commit_queue import CommitQueue, QueuedCommit
from stepwell._worker.committing.uncommitted import Uncommitted
from stepwell._worker.lost_replies import Verdict

MOST_MISFITS = 5  # failures before an outcome is refused although the server accepts others of its shape
PATIENCE = 0.3  # seconds of halving a batch to find outcomes with locked rows


class BatchCommitter(Protocol):
    """The committer, as isolation sees it."""

    async def commit_batch(self, batch: list[QueuedCommit]) -> None: ...


class Isolation:
    """Splits a failed batch."""

    def __init__(self, committer: BatchCommitter, queue: CommitQueue, uncommitted: Uncommitted) -> None:
        self._committer = committer
        self._queue = queue
        self._uncommitted = uncommitted
        self.until: float | None = None  # the time limit of the current tick; None: no lock wait yet

    async def separate(self, batch: list[QueuedCommit], error: Misfit) -> None:
        """Commit the outcomes that the server accepts, if it accepts the first or the last one; otherwise no single
        outcome is at fault, and all are kept. Failed outcomes are retried, MOST_MISFITS times at most."""
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
        """Retry entries that failed while others succeeded. A failure counts only if an outcome of the same shape
        succeeded: otherwise a table may be missing that only this shape needs."""
        applied = (Verdict.COMMITTED, Verdict.STILL_CLAIMED)
        accepted = {shape_of(entry.commit) for entry in batch if entry.verdict in applied}
        for entry in entries:
            entry.misfits += shape_of(entry.commit) in accepted
            if entry.misfits >= MOST_MISFITS:
                self._uncommitted.refuse(entry, error)
                continue
            self._uncommitted.retry_misfit(entry, error)

    async def isolate(self, batch: list[QueuedCommit], error: Refusal | Contention) -> None:
        """Halve a batch until the refused or locked row is alone."""
        if len(batch) > 1:
            if isinstance(error, Contention):
                batch = await self._without_plain(batch)
                if self._is_out_of_time():
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
            entry.is_apart = True  # no further batch waits for its lock
            self._queue.put_back_later(entry)
            return
        self._uncommitted.refuse(entry, error)

    async def _without_plain(self, batch: list[QueuedCommit]) -> list[QueuedCommit]:
        """If the batch is mixed, commit its plain outcomes, which wait for no lock; returns the others."""
        others = [entry for entry in batch if not entry.commit.is_plain]
        if not others or len(others) == len(batch):
            return batch
        await self._committer.commit_batch([entry for entry in batch if entry.commit.is_plain])
        return others

    def _is_out_of_time(self) -> bool:
        """Whether the tick has used up its time for isolation: each try waits for a lock, and all other outcomes wait
        for the tick."""
        now = perf_counter()
        if self.until is None:
            self.until = now + PATIENCE
        return now >= self.until
