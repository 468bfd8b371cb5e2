"""Gives back claims whose steps do not begin here: to those who have a slot for them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence

from stepwell._core.faults import StoreFault
from stepwell._core.records import Claim
from stepwell._runtime.landing import is_ours
from stepwell._runtime.notifier import Notifier
from stepwell._store import instances
from stepwell._store.database import Database

log = logging.getLogger("stepwell")

PAUSES = (0.0, 0.005, 0.02, 0.1, 0.5, 2.0)  # seconds before each further try


class Releases:
    """What somebody else has locked is tried again, while nobody waits for it: a claim of another worker locks for a
    moment what was claimed just before it, also if it does not want that any more."""

    def __init__(
        self, database: Database, notifier: Notifier, on_released: Callable[[Sequence[Claim]], None]
    ) -> None:
        self._database = database
        self._notifier = notifier
        self._on_released = on_released
        self._tries: set[asyncio.Task[None]] = set()

    async def release(self, claims: list[Claim]) -> None:
        """Give claims back; those that are locked, soon after."""
        left = await self._release_once(claims) if claims else []
        if left:
            self.release_soon(left)

    def release_soon(self, claims: list[Claim]) -> None:
        """Give claims back while others go on."""
        trying = asyncio.create_task(self._try(claims), name="stepwell release")
        self._tries.add(trying)
        trying.add_done_callback(self._tries.discard)

    async def finish(self, patience: float) -> None:
        """Wait for what is still to be given back, not longer than that."""
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
        self._on_released(claims)  # so long is nobody waited for: the heartbeat returns them

    async def _release_once(self, claims: list[Claim]) -> list[Claim]:
        """Give claims back; returns those that are still ours."""
        try:
            released, queues = await instances.release(
                self._database, claims[0].worker_id, [(c.id, c.fence, c.concurrency_key) for c in claims]
            )
            missing = [claim for claim in claims if claim.id not in released]
            traces = await instances.verify(self._database, [claim.id for claim in missing]) if missing else {}
        except StoreFault as error:
            log.warning("worker: %d claims could not be released (%s); the reaper returns them", len(claims), error)
            self._on_released(claims)
            return []
        for queue, number in Counter(queues).items():
            self._notifier.announce_work(queue, number)
        left = {claim.id for claim in missing if is_ours(claim, traces.get(claim.id))}
        self._on_released([claim for claim in claims if claim.id not in left])
        return [claim for claim in missing if claim.id in left]
