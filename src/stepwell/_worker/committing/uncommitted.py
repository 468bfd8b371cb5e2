"""Handles outcomes that a statement did not commit: retried, refused, stale, or applied by an earlier try."""

from __future__ import annotations

import logging

from stepwell._core.store_errors import Misfit, StoreFault
from stepwell._process.stats import Stats
from stepwell._store import instances
from stepwell._store.connection.pool import Database
from stepwell._worker.commit_queue import CommitQueue, QueuedCommit, set_verdicts
from stepwell._worker.committing.announcer import Announcer
from stepwell._worker.committing.limit_slots import SlotReleases
from stepwell._worker.lost_replies import Verdict, is_ours, judge
from stepwell.errors import RefusedByDatabase

log = logging.getLogger("stepwell")


class Uncommitted:
    """Decides about each such outcome of one committer, from its row."""

    def __init__(
        self, database: Database, queue: CommitQueue, announcer: Announcer, slot_releases: SlotReleases, stats: Stats
    ) -> None:
        self._database = database
        self._queue = queue
        self._announcer = announcer
        self._slot_releases = slot_releases
        self._stats = stats

    async def settle(self, entries: list[QueuedCommit]) -> None:
        """Read the rows of uncommitted outcomes; retry the outcomes of locked rows, and conclude the others."""
        traces = await instances.verify(self._database, [entry.commit.claim.id for entry in entries])
        for entry in entries:
            trace = traces.get(entry.commit.claim.id)
            if is_ours(entry.commit.claim, trace):
                self._queue.put_back_later(entry)
            else:
                self._conclude(entry, Verdict.UNKNOWN if entry.is_repeated else judge(entry.in_doubt, trace))

    def _conclude(self, entry: QueuedCommit, verdict: Verdict) -> None:
        """Log, publish and set the verdict of a commit that its claim can no longer write."""
        claim = entry.commit.claim
        if verdict is Verdict.STALE:
            log.warning("committer: %s: stale, its claim no longer holds", claim.label)
            self._stats.stale += 1
            self._announcer.stale(entry.commit)
        elif verdict is Verdict.UNKNOWN:
            log.warning("committer: %s: the reply to its commit was lost, and its row has changed since", claim.label)
        else:
            self._stats.committed += 1
            if verdict is Verdict.COMMITTED:
                self._announcer.applied(entry.in_doubt or entry.commit)
        entry.verdict = verdict
        set_verdicts([entry])
        if verdict is not Verdict.STALE and claim.concurrency_limit is not None:
            self._slot_releases.add([claim.concurrency_limit])  # maybe no row was admitted to its slot yet

    def retry_misfit(self, entry: QueuedCommit, error: Misfit) -> None:
        """Retry an outcome: the server may have refused it for a reason of its own."""
        self._database.outages.failed_once(f"commit of {entry.commit.claim.label}", error)
        self._queue.put_back_later(entry)

    def refuse(self, entry: QueuedCommit, error: StoreFault) -> None:
        """Raise the error of Postgres at the caller of this outcome."""
        self._stats.refused += 1
        log.warning("committer: %s: refused by the database: %s", entry.commit.claim.label, error)
        if not entry.future.done():
            entry.future.set_exception(RefusedByDatabase(str(error)))
