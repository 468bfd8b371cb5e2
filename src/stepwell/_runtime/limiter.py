"""Asks the limits: of the rows that need some, claims those that may run, and puts the others aside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from stepwell import _probes
from stepwell._core.faults import Conflict
from stepwell._core.records import Claim
from stepwell._runtime.detours import Detours
from stepwell._runtime.emitter import Emitter
from stepwell._runtime.lease import Lease
from stepwell._runtime.notifier import Notifier
from stepwell._store import limits, slots
from stepwell._store.database import Database
from stepwell._store.instances import Claimed

TRIES = 3


class Limiter:
    """Slots and tokens are the database's; nothing of them is remembered here."""

    def __init__(
        self,
        *,
        database: Database,
        notifier: Notifier,
        emitter: Emitter,
        lease: Lease,
        expect: Callable[[float], None],
    ) -> None:
        self._database = database
        self._notifier = notifier
        self._emitter = emitter
        self._lease = lease
        self._expect = expect
        self._detours = Detours[str]()  # queues

    async def claim(
        self, worker_id: int, queue: str, demand: int, labels: Sequence[str], others: Sequence[str]
    ) -> Claimed | None:
        """Claim from a queue where what waits needs slots, the short way; None if that has to be the long one."""
        if self._detours.has(queue):
            return None
        taken = await slots.claim(self._database, worker_id, queue, demand, labels, others)
        if taken is None or (taken.missed and not taken.claims and not taken.held):
            self._detours.add([queue])
            return None
        self._detours.drop([queue])
        if _probes.hooks:
            await _probes.reach("limiter.admitted", ids=[claim.id for claim in taken.claims])
        self._emitter.waits(queue, taken.held)
        return Claimed(taken.claims, [], [], taken.missed, [], held=taken.held)

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
            if _probes.hooks:
                await _probes.reach("limiter.admitted", ids=[claim.id for claim in answer.claims])
            self._wake(answer.queues)
            if answer.wait is not None:
                self._expect(answer.wait)
            self._emitter.waits(queue, answer.held)
            return answer.claims, answer.left > 0
        return [], True

    async def pass_on(self, keys: Iterable[str | None]) -> None:
        """Let the next ones go in place of rows that wait for something else now; None is of a row without a limit."""
        if passed := [key for key in keys if key is not None]:
            async with self._database.transaction() as session:
                queues = await limits.free(session, passed)
            self._wake(queues)

    def _wake(self, queues: Sequence[str]) -> None:
        for queue in set(queues):
            self._notifier.announce_work(queue)
