"""Stops the steps of single claims that this worker has lost: reaped, given back, or taken away by an operator."""

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
    """A claim that a notification or a beat calls lost is looked up first: only its row proves that."""

    def __init__(self, database: Database, active_claims: ActiveClaims, withdrawals: Withdrawals) -> None:
        self._database = database
        self._active_claims = active_claims
        self._withdrawals = withdrawals
        self._doubted: set[Claim] = set()  # a notification, or a beat, says that they are lost
        self._looking: asyncio.Task[None] | None = None

    def hear(self, payload: str) -> None:
        """A notification of any process: an operator took a row away."""
        self.doubt(self._named(payload))

    def hear_here(self, payload: str) -> None:
        """This process itself took a row away."""
        self._lose(self._named(payload))

    def doubt(self, claims: frozenset[Claim]) -> None:
        """Look up whether these claims are lost, and stop their steps if they are."""
        self._doubted |= claims
        if self._doubted and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look(), name="stepwell doubts")

    async def settle(self) -> None:
        """Wait until the doubted claims have been looked up."""
        if self._looking is not None:
            await self._looking

    def _named(self, payload: str) -> frozenset[Claim]:
        """The active claim that a notification names. A newer claim of the same instance is another one."""
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
        """Stop the steps of these claims. A newer claim of the same instance is not lost."""
        active_claims = [self._active_claims.get(claim.id) for claim in claims]
        lost = []
        for active in active_claims:
            if active is None or active.claim not in claims:
                continue
            if active.stage is OPEN:
                lost.append(active.claim.id)
            else:
                active.revoked = True  # the fence decides about its outcome; no further step runs
        if lost:
            self._active_claims.abandon(lost, "the claim of this step is lost")
            self._withdrawals.drop_lost()
            log.warning("worker: %d claims were lost; their steps were stopped", len(lost))


def _is_held(claim: Claim, trace: Trace | None) -> bool:
    """Whether the row is still the claim's, perhaps one step further by now."""
    return is_ours(claim, trace) or is_ours(replace(claim, fence=claim.fence + 1), trace)
