"""Knows the next due instant, of a row or of a line of tokens, and wakes for it; also the one loop that polls."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import timedelta

from stepwell import _probes
from stepwell._runtime.lanes import Lane, Lanes
from stepwell._runtime.notifier import Notifier
from stepwell._service import Service
from stepwell._store import instances, interactions, limits
from stepwell._store.database import Database
from stepwell._store.interactions import FULL_LOOK
from stepwell._store.units import Settled

log = logging.getLogger("stepwell")

MARGIN = 0.0002  # wake just after the instant: now and then it is just before, and a second look follows at once
LOCKED_PAUSE = 0.02  # a due row is locked, by a client that begins to wait for it or by a foreign transaction
FULL_TICK = 1_000
FULL_FLOW = 100


class Timers(Service):
    """Lets due rows into the claim's index, in any queue, and finds work that no notice told of."""

    def __init__(
        self,
        *,
        database: Database,
        notifier: Notifier,
        lanes: Lanes,
        wake_claimer: Callable[[], None],
        give_back: Callable[[Lane], Awaitable[None]],
        wake_sharer: Callable[[], None],
        transports: Mapping[str, Callable[[], None]],
        settled: Callable[[Settled], None],
        poll: timedelta,
        max_poll: timedelta,
    ) -> None:
        super().__init__("timers")
        self._database = database
        self._notifier = notifier
        self._lanes = lanes
        self._wake_claimer = wake_claimer
        self._give_back = give_back
        self._wake_sharer = wake_sharer
        self._transports = transports  # that this worker sends over, and how to wake their dispatchers
        self._settled = settled
        self._poll = poll.total_seconds()
        self._max_poll = max_poll.total_seconds()
        self._pause = self._poll

    def expect(self, seconds: float) -> None:
        """A row comes due in that time."""
        self.hasten(seconds + MARGIN)

    async def tick(self) -> float | None:
        seen = await instances.tick(self._database, self._lanes.names, list(self._transports))
        self._lanes.note_fair(seen.fair)
        await self._note_paused(seen.paused)
        if seen.misplaced:
            self._wake_sharer()
        for transport in seen.to_send:
            self._transports[transport]()
        late, held = await self._expire() if seen.has_late else (0, 0)
        let_go, wait = await limits.flow(self._database, seen.flowing) if seen.flowing else ([], None)
        self._announce({*seen.freed_queues, *let_go}, seen.ready)
        if _probes.hooks:
            await _probes.reach("timers.ticked", freed=seen.freed)
        if seen.freed == FULL_TICK or len(seen.flowing) == FULL_FLOW or late == FULL_LOOK:
            return 0.0
        pause = self._next_pause(is_busy=bool(seen.ready))
        if wait is not None:
            pause = min(pause, wait + MARGIN)
        if held:
            pause = min(pause, LOCKED_PAUSE)
        if seen.next_due is None:
            return pause
        return min(pause, seen.next_due + MARGIN if seen.next_due > 0 else LOCKED_PAUSE)

    def _announce(self, freed: Collection[str], ready: Collection[str]) -> None:
        """Queues with work: those of this worker are claimed from, the others are told of."""
        for queue in freed:
            if not self._lanes.mark_ready(queue):
                self._notifier.announce_work(queue)
        for queue in ready:
            self._lanes.mark_ready(queue, is_news=False)  # mostly a backlog that was there before
        if freed or ready:
            self._wake_claimer()

    async def _expire(self) -> tuple[int, int]:
        """End questions whose time is over; returns how many there were, and how many somebody else holds."""
        late, held, settled = await interactions.expire(self._database)
        self._settled(settled)
        return late, held

    async def _note_paused(self, paused: Collection[str]) -> None:
        """Let paused queues rest: what was claimed from them and waits for a slot is given back."""
        for lane in self._lanes.note_paused(paused):
            log.info("worker: queue %r is %s", lane.queue, "paused" if lane.is_paused else "resumed")
        for lane in self._lanes:
            if lane.is_paused and (lane.buffer or lane.returning):
                await self._give_back(lane)

    def _next_pause(self, *, is_busy: bool) -> float:
        """Poll slower and slower while nothing happens, with jitter, so that a fleet does not poll in step."""
        self._pause = self._poll if is_busy else min(self._pause * 2, self._max_poll)
        return self._pause * random.uniform(0.9, 1.0)  # noqa: S311 - jitter, not a secret
