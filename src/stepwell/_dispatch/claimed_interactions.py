"""The interactions that a dispatcher has claimed, until their results are recorded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence

from stepwell._lease.lease import Lease
from stepwell._process import probes
from stepwell._store import interactions
from stepwell._store.await_units import Settled
from stepwell._store.connection.pool import Database
from stepwell._store.interactions import Lost, Sent

log = logging.getLogger("stepwell")


class ClaimedInteractions:
    """Those of one transport in one worker. Results that were not recorded are recorded at the next call."""

    def __init__(
        self, transport: str, database: Database, lease: Lease, settled: Callable[[Settled], None],
        expect_due: Callable[[float], None],
    ) -> None:  # fmt: skip
        self._transport = transport
        self._database = database
        self._lease = lease
        self._settled = settled
        self._expect_due = expect_due
        self._sent: list[Sent] = []
        self._failed: list[Lost] = []
        self.unrecorded: set[str] = set()  # ids

    @property
    def has_results(self) -> bool:
        """Whether results are left to record."""
        return bool(self._sent or self._failed)

    def note(self, result: Sent | Lost) -> None:
        """Keep a result for `record`."""
        if isinstance(result, Sent):
            self._sent.append(result)
        else:
            self._failed.append(result)

    async def record(self) -> None:
        """Record all results. Rows that another transaction locks are recorded later.

        Without a lease there is nothing to record: another worker sends the interactions again.
        """
        if not self._lease.is_held:
            return
        if self._sent:
            await self._record_sent(self._lease.worker_id)
        if self._failed:
            await self._record_failed(self._lease.worker_id)

    async def _record_sent(self, worker_id: int) -> None:
        batch, self._sent = self._sent, []
        unrecorded: Sequence[Sent] = batch
        try:
            unrecorded = await interactions.record(self._database, worker_id, batch)
        finally:
            self._sent = [*unrecorded, *self._sent]
        self.unrecorded -= {sent.id for sent in batch} - {sent.id for sent in unrecorded}
        if delays := [sent.delay for sent in batch if sent.delay is not None]:
            self._expect_due(min(delays).total_seconds())
        if probes.hooks:
            await probes.reach("dispatcher.recorded", ids=[sent.id for sent in batch])

    async def _record_failed(self, worker_id: int) -> None:
        lost, self._failed = self._failed, []
        unended: Sequence[Lost] = lost
        try:
            unended, settled = await interactions.fail(self._database, worker_id, lost)
        finally:
            self._failed = [*unended, *self._failed]
        self.unrecorded -= {d.interaction_id for d, _ in lost} - {d.interaction_id for d, _ in unended}
        self._settled(settled)

    async def release(self, kept: Collection[str]) -> None:
        """Release the interactions that the database counts as this worker's, other than those `kept`."""
        if not self._lease.is_held:
            return
        released = await interactions.release(self._database, self._lease.worker_id, self._transport, kept)
        if released:
            log.info("dispatcher of %s: released %d interactions", self._transport, released)
            self._settled(Settled(transports=[self._transport]))
