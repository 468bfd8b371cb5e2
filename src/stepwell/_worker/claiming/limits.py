"""Asks the limits: of the rows that need some, claims those that may run, and puts the others on hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepwell._core.instance import Claim
from stepwell._core.store_errors import Conflict
from stepwell._hooks.emitter import Emitter
from stepwell._lease.lease import Lease
from stepwell._notify.notifier import Notifier
from stepwell._process import probes
from stepwell._store import limits
from stepwell._store.connection.pool import Database
from stepwell._store.operations.claim import Claimed
from stepwell._worker.wakeups import Wakeups

TRIES = 3


class Limiter:
    """Slots and tokens are in the database; nothing of them is kept here."""

    def __init__(
        self,
        *,
        database: Database,
        notifier: Notifier,
        emitter: Emitter,
        lease: Lease,
        wakeups: Wakeups,
    ) -> None:
        self._database = database
        self._notifier = notifier
        self._emitter = emitter
        self._lease = lease
        self._wakeups = wakeups

    async def note(self, queue: str, claimed: Claimed) -> None:
        """Publish what a claim has admitted by limits, or put on hold for them."""
        if not claimed.is_by_limits:
            return
        if probes.hooks:
            await probes.reach("limiter.admitted", ids=[claim.id for claim in claimed.claims])
        self._emitter.waits(queue, claimed.held)

    async def admit(self, queue: str, ids: Sequence[int]) -> tuple[list[Claim], bool]:
        """Claim what may run; True if some of the rest may be claimable in a moment."""
        worker_id = self._lease.current
        if worker_id is None:  # lost since the claim
            return [], True
        for _ in range(TRIES):
            try:
                answer = await limits.admit(self._database, worker_id, queue, ids)
            except Conflict:  # another worker claimed the same concurrency key in the same moment
                continue
            if probes.hooks:
                await probes.reach("limiter.admitted", ids=[claim.id for claim in answer.claims])
            self._wake(answer.queues)
            if answer.wait is not None:
                self._wakeups.due_in(answer.wait)
            self._emitter.waits(queue, answer.held)
            return answer.claims, answer.left > 0
        return [], True

    def pass_on(self, keys: Iterable[str | None]) -> None:
        """Admit the next rows in place of rows that now wait for something else; None: a row without a limit."""
        if passed := [key for key in keys if key is not None]:
            self._wakeups.limit_slots_freed(passed)

    def _wake(self, queues: Sequence[str]) -> None:
        for queue in set(queues):
            self._notifier.notify_work(queue)
