"""Stops the steps of claims that this worker has lost to the reaper, the heartbeat or an operator."""

from __future__ import annotations

import asyncio
import logging

from msgspec.structs import replace

from stepwell._core.instance import Claim
from stepwell._core.store_errors import StoreFault
from stepwell._store import instances
from stepwell._store.connection import notifications
from stepwell._store.connection.pool import Database
from stepwell._store.instances import Trace
from stepwell._worker.active_claims import OPEN, ActiveClaims
from stepwell._worker.lost_replies import is_ours
from stepwell._worker.running.withdrawals import Withdrawals

log = logging.getLogger("stepwell")


class LostClaims:
    """Verifies claims that a notification or a beat reports lost: only the row proves the loss."""

    def __init__(self, database: Database, active_claims: ActiveClaims, withdrawals: Withdrawals) -> None:
        self._database = database
        self._active_claims = active_claims
        self._withdrawals = withdrawals
        self._doubted: set[Claim] = set()  # reported lost, not yet verified
        self._looking: asyncio.Task[None] | None = None

    def hear(self, payload: str) -> None:
        """Another process notifies: an operator took a row."""
        self.doubt(self._named(payload))

    def hear_here(self, payload: str) -> None:
        """This process itself took a row."""
        self._lose(self._named(payload))

    def doubt(self, claims: frozenset[Claim]) -> None:
        """Verify in the background whether these claims are lost; stop the steps of the lost ones."""
        self._doubted |= claims
        if self._doubted and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look(), name="stepwell doubts")

    async def settle(self) -> None:
        """Wait until the reported claims are verified."""
        if self._looking is not None:
            await self._looking

    def _named(self, payload: str) -> frozenset[Claim]:
        """The active claim that a notification names, unless it is a newer claim of the instance."""
        id_, fence = map(notifications.read_number, payload.partition(" ")[::2])
        active = None if id_ is None else self._active_claims.get(id_)
        if active is None or fence is None or active.claim.fence >= fence:
            return frozenset()
        return frozenset({active.claim})

    async def _look(self) -> None:
        while self._doubted:
            claims, self._doubted = self._doubted, set()
            try:
                traces = await instances.verify(self._database, [claim.id for claim in claims])
            except StoreFault as error:
                self._database.outages.failed_once("lost claims", error)  # the next beat finds them
                return
            self._lose(frozenset(claim for claim in claims if not _is_held(claim, traces.get(claim.id))))

    def _lose(self, claims: frozenset[Claim]) -> None:
        """Stop the steps of these claims, but not of newer claims of the same instances."""
        active_claims = [self._active_claims.get(claim.id) for claim in claims]
        lost = []
        for active in active_claims:
            if active is None or active.claim not in claims:
                continue
            if active.stage is OPEN:
                lost.append(active.claim.id)
            else:
                active.revoked = True  # the fence decides about its outcome; no next step runs
        if lost:
            self._active_claims.abandon(lost, "the claim of this step is lost")
            self._withdrawals.drop_lost()
            log.warning("worker: %d claims were lost; their steps were stopped", len(lost))


def _is_held(claim: Claim, trace: Trace | None) -> bool:
    """Whether the claim still holds the row, possibly at the next step (run ahead)."""
    return is_ours(claim, trace) or is_ours(replace(claim, fence=claim.fence + 1), trace)
