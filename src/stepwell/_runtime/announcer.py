"""Tells, after a commit, who may go on by it: claimers, timers, and clients that wait; and whoever hooked it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from stepwell._core.commits import Commit
from stepwell._core.status import Hold, Status
from stepwell._runtime.emitter import Emitter
from stepwell._runtime.notifier import Notifier
from stepwell._store.flushes import Flushed


class Announcer:
    """What has become durable, said to this process and to the others. Hints only: polling is the floor."""

    def __init__(self, notifier: Notifier, emitter: Emitter, expect_due: Callable[[float], None]) -> None:
        self._notifier = notifier
        self._emitter = emitter
        self._expect_due = expect_due

    def committed(self, commits: Iterable[Commit], flushed: Flushed) -> None:
        """Say what the answer to a flush of these commits tells."""
        wakes = Counter(flushed.freed_queues)
        if flushed.has_later_children:
            self._notifier.announce_due()
        by_id = {commit.claim.id: commit for commit in commits}
        for row in flushed.committed:
            if row.status is Status.EXECUTING:  # it goes on here, and nobody waits for that
                continue
            commit = by_id[row.id]
            if row.status is Status.RUNNABLE and row.hold is None:
                wakes[row.queue] += 1
            elif row.hold is Hold.DUE:
                self._expect_due(commit.delay.total_seconds() - flushed.took)
            elif commit.patience is not None:
                self._expect_due(commit.patience.total_seconds() - flushed.took)
            if row.watched and row.status.is_settled:
                self._notifier.announce_settled(row.id)
        for queue, count in wakes.items():
            self._notifier.announce_work(queue, count)
        for transport in set(flushed.transports):
            self._notifier.announce_dispatch(transport)
        self._emitter.committed(by_id, flushed)

    def as_meant(self, commits: Sequence[Commit]) -> None:
        """Say what bare commits tell that landed as they were to, and for which no client waits."""
        back = Counter(
            [commit.claim.queue for commit in commits if commit.status is Status.RUNNABLE and not commit.goes_on]
        )
        for queue, count in back.items():
            self._notifier.announce_work(queue, count)
        self._emitter.as_meant(commits)

    def may_run(self, queues: Iterable[str]) -> None:
        """Say that rows of these queues may run."""
        for queue, count in Counter(queues).items():
            self._notifier.announce_work(queue, count)

    def landed(self, commit: Commit) -> None:
        """Say what the lost answer to a commit would have told."""
        if commit.delay or commit.patience:
            self._expect_due((commit.patience or commit.delay).total_seconds())
        if commit.asks is not None and commit.asks.common.sends:
            self._notifier.announce_dispatch(commit.asks.common.transport)
        for queue in {commit.queue or commit.claim.queue, *(child.queue for child in commit.children or ())}:
            self._notifier.announce_work(queue)
        if commit.status.is_settled:
            self._notifier.announce_settled(commit.claim.id)
        self._emitter.landed(commit)

    def stale(self, commit: Commit) -> None:
        """Say that an outcome was dropped: its claim was no longer ours."""
        self._emitter.stale(commit)
