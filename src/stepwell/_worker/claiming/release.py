"""Releases claims that do not start in this worker, so that other workers can claim them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Protocol

from stepwell._core.instance import Claim
from stepwell._core.store_errors import Contention, StoreFault
from stepwell._notify.notifier import Notifier
from stepwell._store import instances
from stepwell._store.connection.pool import Database
from stepwell._worker.lost_replies import is_ours
from stepwell._worker.queue_slots import QueueSlots

log = logging.getLogger("stepwell")

PAUSES = (0.0, 0.005, 0.02, 0.1, 0.5, 2.0)  # seconds before each further try


class WaitingClaims(Protocol):
    """`Withdrawals`, as claiming sees it: takes back claims that have not started."""

    def take_back_all(self) -> list[Claim]: ...
    def take_back_waiting(self, queue_slots: QueueSlots, keep: int = 0) -> list[Claim]: ...
    def take_back_returning(self, queue_slots: QueueSlots, patience: float = 0.0) -> list[Claim]: ...
    def note_paused(self, paused: Collection[str]) -> tuple[list[QueueSlots], list[Claim]]: ...
    def released(self, claims: Sequence[Claim]) -> None: ...


class ClaimReleaser:
    """Retries locked rows in the background: a claim statement of another worker briefly locks rows that were claimed
    just before it, although it does not claim them."""

    def __init__(self, database: Database, notifier: Notifier, waiting: WaitingClaims) -> None:
        self._database = database
        self._notifier = notifier
        self._waiting = waiting
        self._tries: set[asyncio.Task[None]] = set()

    async def release_waiting(self, queue_slots: QueueSlots, keep: int, patience: float) -> None:
        """Release claims of one queue that wait for a slot: to start, except the first `keep`; or to continue, after
        `patience` seconds."""
        returning = self._waiting.take_back_returning(queue_slots, patience)
        await self.release([*returning, *self._waiting.take_back_waiting(queue_slots, keep)])

    async def release_all(self) -> None:
        """Release every claim that has not started."""
        await self.release(self._waiting.take_back_all())

    async def note_paused(self, paused: Collection[str]) -> None:
        """Exactly these queues are paused: release their claims that have not started."""
        changed, claims = self._waiting.note_paused(paused)
        for queue_slots in changed:
            log.info("worker: queue %r is %s", queue_slots.queue, "paused" if queue_slots.is_paused else "resumed")
        await self.release(claims)

    async def release(self, claims: list[Claim]) -> None:
        """Release claims; locked rows are retried in the background."""
        left = await self._release_once(claims) if claims else []
        if left:
            self.release_soon(left)

    def release_soon(self, claims: list[Claim]) -> None:
        """Release claims in the background."""
        trying = asyncio.create_task(self._try(claims), name="stepwell release")
        self._tries.add(trying)
        trying.add_done_callback(self._tries.discard)

    async def finish(self, patience: float) -> None:
        """Wait for the background releases, at most `patience` seconds."""
        if self._tries:
            await asyncio.wait(self._tries, timeout=patience)
        for trying in self._tries:
            trying.cancel()

    async def _try(self, claims: list[Claim]) -> None:
        for pause in PAUSES:
            await asyncio.sleep(pause)
            claims = await self._release_once(claims)
            if not claims:
                return
        self._waiting.released(claims)  # the heartbeat releases them as orphaned claims

    async def _release_once(self, claims: list[Claim]) -> list[Claim]:
        """Release claims; returns those that are locked and still this worker's."""
        try:
            released, queues = await instances.release(
                self._database, claims[0].worker_id, [(c.id, c.fence, c.concurrency_key) for c in claims]
            )
            missing = [claim for claim in claims if claim.id not in released]
            traces = await instances.verify(self._database, [claim.id for claim in missing]) if missing else {}
        except Contention:
            return claims
        except StoreFault as error:
            self._database.outages.failed_once("releases of claims", error)  # the heartbeat or the reaper releases them
            self._waiting.released(claims)
            return []
        for queue, number in Counter(queues).items():
            self._notifier.notify_work(queue, number)
        left = {claim.id for claim in missing if is_ours(claim, traces.get(claim.id))}
        self._waiting.released([claim for claim in claims if claim.id not in left])
        return [claim for claim in missing if claim.id in left]
