"""Puts rows on hold that a claim has met and that may not run now, so that the next claim does not meet them again."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell._core.registry import Registry
from stepwell._notify.notifier import Notifier
from stepwell._store import concurrency_keys, instances
from stepwell._store.connection.pool import Database
from stepwell._store.operations.claim import Claimed, KeyHolder
from stepwell._store.registrations import workers
from stepwell._worker.claiming.limits import Limiter


class Holds:
    """Puts rows on hold: with a busy concurrency key, or of a version that neither this worker nor another one runs."""

    def __init__(self, database: Database, registry: Registry, notifier: Notifier, limiter: Limiter) -> None:
        self._database = database
        self._registry = registry
        self._notifier = notifier
        self._limiter = limiter
        self._labels = registry.labels()
        self.forget_versions()

    def forget_versions(self) -> None:
        """Workers may have come and gone: ask again which versions they run."""
        self.labels = self._labels  # versions that this worker claims: its own, and those that it brings forward
        self.others: list[str] = []  # versions that other live workers run

    async def put(self, queue: str, answer: Claimed) -> bool:
        """Put what may not run now on hold; True if some of it may run after all."""
        contended = False
        if answer.busy:
            held = await concurrency_keys.hold(
                self._database, [row.id for row in answer.busy], [str(row.concurrency_key) for row in answer.busy]
            )
            contended = len(held) < len(answer.busy)
            self._limiter.pass_on(held.values())
        if answer.foreign:
            await self._hold_foreign(queue, answer.foreign)
            contended = True  # rows behind these in the window may be claimable
        return contended

    async def _hold_foreign(self, queue: str, foreign: Sequence[KeyHolder]) -> None:
        labels = {row.label for row in foreign}
        others = await workers.registered(self._database, sorted(labels))
        if others.difference(self.others):
            self.others = sorted(others.union(self.others))
            self._notifier.notify_elsewhere(queue)  # their claims may just have skipped the rows in this window
        orphans = labels - others
        adopted = {label for label in orphans if self._can_adopt(label)}
        self.labels = [*self.labels, *sorted(adopted.difference(self.labels))]
        stranded = [row.id for row in foreign if row.label in orphans - adopted]
        if stranded:
            held = await instances.hold_unknown_versions(self._database, stranded)
            self._limiter.pass_on(held.values())
            # A worker that registered the version meanwhile may have looked before the hold: look again.
            await instances.admit_versions(self._database)

    def _can_adopt(self, label: str) -> bool:
        name, _, version = label.rpartition("@")
        return self._registry.successor(name, int(version)) is not None
