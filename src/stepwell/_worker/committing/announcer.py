"""Notifies claimers, timers, waiting clients and hooks after a commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from stepwell._core.commit import Commit
from stepwell._core.status import Hold, Status
from stepwell._hooks.emitter import Emitter
from stepwell._notify.notifier import Notifier
from stepwell._store.connection import notifications
from stepwell._store.operations.commit_result import CommitResult
from stepwell._worker.wakeups import Wakeups


class Announcer:
    """Notifies this process and others of durable commits. Notifications are hints; polling is the floor."""

    def __init__(self, notifier: Notifier, emitter: Emitter, wakeups: Wakeups) -> None:
        self._notifier = notifier
        self._emitter = emitter
        self._wakeups = wakeups

    def committed(self, commits: Iterable[Commit], result: CommitResult) -> None:
        """Publish the results of a batch of these commits."""
        wakes = Counter(result.freed_queues)
        if result.has_later_children:
            self._notifier.publish(notifications.DUE)
        by_id = {commit.claim.id: commit for commit in commits}
        for row in result.committed:
            if row.status is Status.EXECUTING:  # its next step runs on the same claim: no notification
                continue
            commit = by_id[row.id]
            if row.status is Status.RUNNABLE and row.hold is None:
                wakes[row.queue] += 1
            elif row.hold is Hold.DUE:
                self._wakeups.due_in(commit.placement.delay.total_seconds() - result.took)
            elif commit.park.deadline is not None:
                self._wakeups.due_in(commit.park.deadline.total_seconds() - result.took)
            if row.watched and row.status.is_settled:
                self._notifier.publish(notifications.SETTLED, str(row.id))
        for queue, count in wakes.items():
            self._notifier.notify_work(queue, count)
        for transport in set(result.transports):
            self._notifier.notify_dispatch(transport)
        self._emitter.committed(by_id, result)

    def as_sent(self, commits: Sequence[Commit], freed_queues: Sequence[str]) -> None:
        """Publish simple commits that were applied exactly as sent, and for which no client waits."""
        runnable = [c.claim.queue for c in commits if not c.runs_ahead and c.status is Status.RUNNABLE]
        if runnable or freed_queues:
            self.may_run([*runnable, *freed_queues])
        if self._emitter.hooks.wanted:
            self._emitter.as_sent(commits)

    def may_run(self, queues: Iterable[str]) -> None:
        """Publish that these queues have claimable rows."""
        for queue, count in Counter(queues).items():
            self._notifier.notify_work(queue, count)

    def applied(self, commit: Commit) -> None:
        """Publish a commit that was applied although its reply was lost."""
        if commit.placement.delay or commit.park.deadline:
            self._wakeups.due_in((commit.park.deadline or commit.placement.delay).total_seconds())
        if commit.park.asks is not None and commit.park.asks.common.sends:
            self._notifier.notify_dispatch(commit.park.asks.common.transport)
        own = commit.placement.queue or commit.claim.queue
        for queue in {own, *(child.queue for child in commit.park.children or ())}:
            self._notifier.notify_work(queue)
        if commit.status.is_settled:
            self._notifier.publish(notifications.SETTLED, str(commit.claim.id))
        self._emitter.applied(commit)

    def stale(self, commit: Commit) -> None:
        """Publish that an outcome was dropped because its claim no longer held."""
        self._emitter.stale(commit)
