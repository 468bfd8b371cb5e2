"""Puts unclaimable rows of a claim's window on hold, so that the next claim skips them."""

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
    """Puts rows on hold if their concurrency key is busy, or if no live worker runs their version."""

    def __init__(self, database: Database, registry: Registry, notifier: Notifier, limiter: Limiter) -> None:
        self._database = database
        self._registry = registry
        self._notifier = notifier
        self._limiter = limiter
        self._labels = registry.labels()
        self.forget_versions()

    def forget_versions(self) -> None:
        """Forget which versions other workers run: workers may have started or ended."""
        self.labels = self._labels  # versions that this worker claims: its own, and those that it upcasts
        self.others: list[str] = []  # versions that other live workers run

    async def put(self, queue: str, claimed: Claimed) -> bool:
        """Put unclaimable rows on hold; True if some rows may be claimable after all."""
        contended = False
        if claimed.busy:
            held = await concurrency_keys.hold(
                self._database, [row.id for row in claimed.busy], [str(row.concurrency_key) for row in claimed.busy]
            )
            contended = len(held) < len(claimed.busy)
            self._limiter.pass_on(held.values())
        if claimed.foreign:
            await self._hold_foreign(queue, claimed.foreign)
            contended = True  # rows after these in the index may be claimable
        return contended

    async def _hold_foreign(self, queue: str, foreign: Sequence[KeyHolder]) -> None:
        labels = {row.label for row in foreign}
        others = await workers.registered(self._database, sorted(labels))
        if others.difference(self.others):
            self.others = sorted(others.union(self.others))
            self._notifier.notify_elsewhere(queue)  # their last claims may have skipped these rows
        orphans = labels - others
        adopted = {label for label in orphans if self._can_adopt(label)}
        self.labels = [*self.labels, *sorted(adopted.difference(self.labels))]
        stranded = [row.id for row in foreign if row.label in orphans - adopted]
        if stranded:
            held = await instances.hold_unknown_versions(self._database, stranded)
            self._limiter.pass_on(held.values())
            # A worker that registered the version meanwhile may have missed these rows: it looked before the hold.
            await instances.admit_versions(self._database)

    def _can_adopt(self, label: str) -> bool:
        name, _, version = label.rpartition("@")
        return self._registry.successor(name, int(version)) is not None
