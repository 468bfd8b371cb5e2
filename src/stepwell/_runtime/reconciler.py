"""Looks for questions that should not be as they are; normally finds nothing, and counts what it finds.

Admitting an answer, counting it and letting the instance go on is one transaction, so there is nothing to heal but
what a crash between claim and send leaves. The rest is a proof that this is so, and a net if it is not.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import timedelta

from stepwell import _probes
from stepwell._runtime.lease import Lease
from stepwell._runtime.tally import Tally
from stepwell._service import Service
from stepwell._store import interactions, units
from stepwell._store.database import Database
from stepwell._store.units import Place, Settled

log = logging.getLogger("stepwell")

LOOKS_APART = 10  # looks for lost senders from one round for what should not be to the next
PAGE_PAUSE = 0.5  # seconds between two looks of a round: 100,000 that wait are looked at within two minutes
END = Place(None, None)


class Reconciler(Service):
    """Sends again what a dead worker was sending, and walks through what waits, round by round, in small looks."""

    def __init__(
        self,
        *,
        database: Database,
        lease: Lease,
        tally: Tally,
        every: timedelta,
        sends: bool,
        settled: Callable[[Settled], None],
    ) -> None:
        super().__init__("reconciler")
        self._database = database
        self._lease = lease
        self._tally = tally
        self._every = every.total_seconds()
        self._sends = sends
        self._settled = settled
        self._looks = 0
        self._look_at = 0.0  # when to look for lost senders again
        self._after = END

    async def tick(self) -> float | None:
        if not self._lease.is_held:
            return self._pause()
        loop = asyncio.get_running_loop()
        if loop.time() >= self._look_at:
            await self._look()
            self._look_at = loop.time() + self._pause()
        if not self._after.is_end:
            await self._reconcile()
        rest = max(self._look_at - loop.time(), 0.0)
        return rest if self._after.is_end else min(rest, PAGE_PAUSE)

    def _pause(self) -> float:
        return self._every * random.uniform(0.8, 1.0)  # noqa: S311 - jitter, not a secret

    async def _look(self) -> None:
        """Look for lost senders; now and then begin a round, unless one is still under way."""
        if self._sends:
            await self._send_again()
        if self._looks % LOOKS_APART == 0 and self._after.is_end:
            self._after = Place()
        self._looks += 1

    async def _send_again(self) -> None:
        lost = await interactions.return_lost(self._database)
        if lost:
            self._tally.sent_again += len(lost)
            log.warning("reconciler: %d questions are sent again: the workers that sent them are gone", len(lost))
            self._settled(Settled(transports=sorted(set(lost))))

    async def _reconcile(self) -> None:
        repaired = await units.reconcile(self._database, self._after)
        self._after = repaired.after
        number = len(repaired.released) + len(repaired.closed) + len(repaired.recounted) + len(repaired.started)
        if number:
            self._tally.reconciled += number
            log.error(
                "reconciler: found what should not be, and mended it: instances %s waited for nothing, units %s were "
                "nobody's, units %s were not counted rightly, units %s had answers that did not go on",
                list(repaired.released), list(repaired.closed), list(repaired.recounted), list(repaired.started),
            )  # fmt: skip
            self._settled(repaired.settled)
        if _probes.hooks:
            await _probes.reach("reconciler.looked", repaired=number)
