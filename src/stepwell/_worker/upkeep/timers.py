"""Wakes when a row or a rate limit's wait queue is due; also the only loop that polls."""

from __future__ import annotations

import logging
import random
from collections.abc import Collection, Sequence
from datetime import timedelta
from functools import partial

from stepwell._dispatch.service import DispatchSetup
from stepwell._notify.notifier import Notifier
from stepwell._process import probes
from stepwell._process.service import Service
from stepwell._store import instances, interactions, limits
from stepwell._store.connection.pool import Database
from stepwell._store.connection.retry import by_halves
from stepwell._store.interactions import FULL_LOOK
from stepwell._worker.queue_slots import AllQueueSlots
from stepwell._worker.upkeep.fair_migration import FairMigration
from stepwell._worker.wakeups import Wakeups

log = logging.getLogger("stepwell")

MARGIN = 0.0002  # wake just after the due time: a tick just before it would have to be repeated
LOCKED_PAUSE = 0.02  # until a locked due row is retried; a client that starts to wait locks it too
LEFT_PAUSE = 0.5  # until a locked rate limit is retried
FLOW_PATIENCE = 0.3  # seconds for locked rate limits in one tick: due rows of all queues wait for the tick
FULL_TICK = 1_000
FULL_FLOW = 100


class Timers(Service):
    """Ends the hold of due rows, in any queue, and finds claimable rows with a lost notification."""

    def __init__(
        self,
        *,
        database: Database,
        notifier: Notifier,
        all_queue_slots: AllQueueSlots,
        fair_migration: FairMigration,
        dispatch_setup: DispatchSetup,
        wakeups: Wakeups,
        poll: timedelta,
        max_poll: timedelta,
    ) -> None:
        super().__init__("timers")
        self._database = database
        self._notifier = notifier
        self._all_queue_slots = all_queue_slots
        self._fair_migration = fair_migration
        self._dispatch_setup = dispatch_setup
        self._wakeups = wakeups
        self._poll = poll.total_seconds()
        self._max_poll = max_poll.total_seconds()
        self._pause = self._poll

    def expect(self, seconds: float) -> None:
        """Tick when a row comes due, in this many seconds."""
        self.wake_within(seconds + MARGIN)

    async def tick(self) -> float | None:
        seen = await instances.wake_due(self._database, self._all_queue_slots.names, self._dispatch_setup.sending)
        self._all_queue_slots.note_fair(seen.fair)
        await self._wakeups.queues_paused(seen.paused)
        if seen.misplaced:
            self._fair_migration.wake()
        for transport in seen.to_send:
            self._wakeups.interactions_waiting(transport)
        self._announce(set(seen.freed_queues), seen.ready)  # before anything that may wait for a lock
        late, held = await self._expire() if seen.has_late else (0, 0)
        wait = await self._flow(seen.flowing)
        if probes.hooks:
            await probes.reach("timers.ticked", freed=seen.freed)
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

    async def _flow(self, rates: Sequence[str]) -> float | None:
        """Admit rows with tokens; returns the seconds until the next one. A locked rate limit delays no other."""
        in_any_order = random.sample(rates, len(rates))  # a locked one is not always first
        moved, left = await by_halves(partial(limits.admit_due, self._database), in_any_order, patience=FLOW_PATIENCE)
        self._announce({queue for queues, _ in moved for queue in queues}, ())
        waits = [wait for _, wait in moved if wait is not None]
        return min([*waits, LEFT_PAUSE] if left else waits, default=None)

    def _announce(self, freed: Collection[str], ready: Collection[str]) -> None:
        """Claim from this worker's queues that have rows, and notify other workers of the other queues."""
        for queue in freed:
            if not self._all_queue_slots.mark_ready(queue):
                self._notifier.notify_work(queue)
        for queue in ready:
            self._all_queue_slots.mark_ready(queue, is_news=False)  # mostly a backlog that was there before
        if freed or ready:
            self._wakeups.work_available()

    async def _expire(self) -> tuple[int, int]:
        """End interactions past their deadline; returns how many there were, and how many are locked."""
        late, held, settled = await interactions.expire(self._database)
        self._dispatch_setup.settled(settled)
        return late, held

    def _next_pause(self, *, is_busy: bool) -> float:
        """Double the pause while nothing happens; the jitter keeps workers from polling at the same time."""
        self._pause = self._poll if is_busy else min(self._pause * 2, self._max_poll)
        return self._pause * random.uniform(0.9, 1.0)  # noqa: S311 - jitter, not a secret
