"""Claims the rows that their limits admit, and puts the others on hold."""

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
    """Keeps no state: slots and tokens are in the database."""

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
        """Publish which rows a claim under limits has put on hold."""
        if not claimed.is_by_limits:
            return
        if probes.hooks:
            await probes.reach("limiter.admitted", ids=[claim.id for claim in claimed.claims])
        self._emitter.waits(queue, claimed.held)

    async def admit(self, queue: str, ids: Sequence[int]) -> tuple[list[Claim], bool]:
        """Claim the admitted rows; also True if some of the others may be claimable soon."""
        worker_id = self._lease.current
        if worker_id is None:  # the lease was lost after the claim
            return [], True
        for _ in range(TRIES):
            try:
                admitted = await limits.admit(self._database, worker_id, queue, ids)
            except Conflict:  # another worker claimed the same concurrency key concurrently
                continue
            if probes.hooks:
                await probes.reach("limiter.admitted", ids=[claim.id for claim in admitted.claims])
            self._wake(admitted.queues)
            if admitted.wait is not None:
                self._wakeups.due_in(admitted.wait)
            self._emitter.waits(queue, admitted.held)
            return admitted.claims, admitted.left > 0
        return [], True

    def pass_on(self, keys: Iterable[str | None]) -> None:
        """Admit the next rows of these limits, in place of rows that were put on hold; None: a row without a limit."""
        if passed := [key for key in keys if key is not None]:
            self._wakeups.limit_slots_freed(passed)

    def _wake(self, queues: Sequence[str]) -> None:
        for queue in set(queues):
            self._notifier.notify_work(queue)
