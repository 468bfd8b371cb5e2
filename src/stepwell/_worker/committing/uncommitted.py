"""What becomes of outcomes that a statement did not commit: they are tried again, refused, or were applied before."""

from __future__ import annotations

import logging

from stepwell._core.store_errors import Misfit, StoreFault
from stepwell._process.stats import Stats
from stepwell._store import instances
from stepwell._store.connection.pool import Database
from stepwell._worker.commit_queue import CommitQueue, QueuedCommit, tell
from stepwell._worker.committing.announcer import Announcer
from stepwell._worker.committing.limit_slots import SlotReleases
from stepwell._worker.lost_replies import Verdict, is_ours, judge
from stepwell.errors import RefusedByDatabase

log = logging.getLogger("stepwell")


class Uncommitted:
    """Decides about each such outcome of one committer by what its row says."""

    def __init__(
        self, database: Database, queue: CommitQueue, announcer: Announcer, slot_releases: SlotReleases, stats: Stats
    ) -> None:
        self._database = database
        self._queue = queue
        self._announcer = announcer
        self._slot_releases = slot_releases
        self._stats = stats

    async def settle(self, entries: list[QueuedCommit]) -> None:
        """Find out about outcomes that were left out: applied before, locked, or of a lost claim."""
        traces = await instances.verify(self._database, [entry.commit.claim.id for entry in entries])
        for entry in entries:
            trace = traces.get(entry.commit.claim.id)
            if is_ours(entry.commit.claim, trace):
                self._queue.put_back_later(entry)
            else:
                self._conclude(entry, Verdict.UNKNOWN if entry.is_repeated else judge(entry.in_doubt, trace))

    def _conclude(self, entry: QueuedCommit, verdict: Verdict) -> None:
        """Tell the verdict of a commit if its claim no longer has its row."""
        claim = entry.commit.claim
        if verdict is Verdict.STALE:
            log.warning("committer: %s: stale, its claim is no longer ours", claim.label)
            self._stats.stale += 1
            self._announcer.stale(entry.commit)
        elif verdict is Verdict.UNKNOWN:
            log.warning("committer: %s: the reply to its commit was lost, and its row has changed since", claim.label)
        else:
            self._stats.committed += 1
            if verdict is Verdict.COMMITTED:
                self._announcer.applied(entry.in_doubt or entry.commit)
        entry.verdict = verdict
        tell([entry])
        if verdict is not Verdict.STALE and claim.concurrency_limit is not None:
            self._slot_releases.add([claim.concurrency_limit])  # no waiting row may have been admitted for it

    def retry_misfit(self, entry: QueuedCommit, error: Misfit) -> None:
        """Try again what the server refuses for a reason that may be its own."""
        self._database.outages.failed_once(f"commit of {entry.commit.claim.label}", error)
        self._queue.put_back_later(entry)

    def refuse(self, entry: QueuedCommit, error: StoreFault) -> None:
        """Raise at the caller what Postgres says against its outcome."""
        self._stats.refused += 1
        log.warning("committer: %s: refused by the database: %s", entry.commit.claim.label, error)
        if not entry.answer.done():
            entry.answer.set_exception(RefusedByDatabase(str(error)))
