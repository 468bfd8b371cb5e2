"""Keeps the lease, in a thread of its own with its own loop and connection: a step that blocks the main loop does not
lose it. Finds claims whose answer was lost, and claims that were lost to others."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from stepwell import _probes
from stepwell._core.records import Claim
from stepwell._runtime.hands import Hands
from stepwell._runtime.lease import Lease
from stepwell._service import Service
from stepwell._store import instances, workers
from stepwell._store.database import WORKER, Database
from stepwell._store.workers import Beat
from stepwell.errors import DatabaseError

log = logging.getLogger("stepwell")

PULSE = 0.25
BLOCKED = 1.0  # a main loop silent for so long is worth a warning


class Heartbeat:
    """The thread: starts and stops the beats, and carries what they find over to the main loop."""

    def __init__(
        self,
        *,
        dsn: str,
        lease: Lease,
        hands: Hands,
        every: timedelta,
        on_lost: Callable[[int], None],
        on_gone: Callable[[frozenset[Claim]], None],
        on_strays: Callable[[list[str], int], None],
    ) -> None:
        self._main = asyncio.get_running_loop()
        self._dsn = dsn
        self._lease = lease
        self._hands = hands
        self._every = every
        self._on_lost = on_lost
        self._on_gone = on_gone
        self._on_strays = on_strays
        self._pulse = Pulse(self._main, hands)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._finish: asyncio.Event | None = None
        self._database = Database(dsn, session=WORKER, most=2)

    @property
    def statements(self) -> int:
        """Statements sent by this thread."""
        return self._database.statements

    def start(self) -> None:
        self._pulse.start()
        self._thread = threading.Thread(target=self._live, name="stepwell heartbeat", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        self._pulse.stop()
        if self._thread is None:
            return
        if self._loop is not None and self._finish is not None:
            self._loop.call_soon_threadsafe(self._finish.set)
        await asyncio.to_thread(self._thread.join, 10.0)
        self._thread = None

    def _live(self) -> None:
        asyncio.run(self._beat_until_finished())

    async def _beat_until_finished(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._finish = asyncio.Event()
        beats = Beats(
            database=self._database, lease=self._lease, hands=self._hands, every=self._every, pulse=self._pulse,
            tell=self._main.call_soon_threadsafe, on_lost=self._on_lost, on_gone=self._on_gone,
            on_strays=self._on_strays,
        )  # fmt: skip
        await self._open_database()
        beats.start()
        await self._finish.wait()
        await beats.stop()
        await self._database.close()


    async def _open_database(self) -> None:
        pause = 0.05
        while self._finish is not None and not self._finish.is_set():
            try:
                await self._database.open()
            except DatabaseError as error:
                log.warning("heartbeat: %s; trying again", error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 1.0)
            else:
                return


class Pulse:
    """Shows that the main loop turns, to those who look from another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, hands: Hands) -> None:
        self._loop = loop
        self._hands = hands
        self._last = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._last = time.monotonic()
        self._timer = self._loop.call_later(PULSE, self.start)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @property
    def silence(self) -> float:
        """Seconds since the main loop last turned."""
        return time.monotonic() - self._last - PULSE

    def blocker(self) -> str:
        """The step, or another task, that the main loop is in."""
        task = asyncio.current_task(self._loop)
        if task is None:
            return "unknown"
        return next((hand.claim.label for hand in self._hands.all() if hand.task is task), task.get_name())


class Beats(Service):
    """The loop in the thread: one beat per interval, and a look at the main loop's pulse between."""

    def __init__(
        self,
        *,
        database: Database,
        lease: Lease,
        hands: Hands,
        every: timedelta,
        pulse: Pulse,
        tell: Callable[..., object],
        on_lost: Callable[[int], None],
        on_gone: Callable[[frozenset[Claim]], None],
        on_strays: Callable[[list[str], int], None],
    ) -> None:
        super().__init__("heartbeat")
        self._database = database
        self._lease = lease
        self._hands = hands
        self._every = every
        self._pulse = pulse
        self._tell = tell
        self._on_lost = on_lost
        self._on_gone = on_gone
        self._on_strays = on_strays
        self._next_beat = time.monotonic() + every.total_seconds()
        self._warned = False
        # After an outage all have one lease to come back (find_lost.sql): who rests longer is buried alive.
        self._longest_backoff = min(self._longest_backoff, every.total_seconds())

    async def tick(self) -> float | None:
        self._watch_main_loop()
        worker_id = self._lease.current  # the main loop may drop it at any time
        if time.monotonic() >= self._next_beat and worker_id is not None and not self._is_main_loop_dead():
            await self._beat(worker_id)
            self._next_beat = time.monotonic() + self._every.total_seconds()
        return max(0.01, min(BLOCKED / 2, self._next_beat - time.monotonic()))

    def _watch_main_loop(self) -> None:
        if self._pulse.silence < BLOCKED:
            self._warned = False
        elif not self._warned:
            self._warned = True
            log.warning("heartbeat: the event loop has been blocked for %.1f s by %s; use a plain def step, "
                        "or await", self._pulse.silence, self._pulse.blocker())

    def _is_main_loop_dead(self) -> bool:
        """A main loop silent for a whole lease does no work: better that others do it."""
        return self._pulse.silence > self._lease.duration.total_seconds()

    async def _beat(self, worker_id: int) -> None:
        held = [hand.claim for hand in self._hands.all() if not hand.submitted and hand.task is not None]
        beat = await workers.beat(self._database, worker_id, self._lease.duration, len(held), self._every)
        if beat is None:
            self._tell(self._on_lost, worker_id)
            return
        gone = frozenset(claim for claim in held if beat.carried.get(claim.id) != claim.fence)
        if gone:
            self._tell(self._on_gone, gone)
        strays = self._hands.give_back({i: beat.carried[i] for i in beat.old})
        if strays:
            await self._return(worker_id, beat, strays)
        if _probes.hooks:
            await _probes.reach("heartbeat.beaten", worker_id=worker_id)

    async def _return(self, worker_id: int, beat: Beat, strays: list[int]) -> None:
        """Give back rows that carry our id and are not in our hands: the answer to their claim was lost.

        What has gone on since the beat, and may even be claimed anew, has another fence.
        """
        lost = [(i, beat.carried[i], beat.old[i]) for i in strays]
        returned, queues = await instances.release(self._database, worker_id, lost)
        if returned:
            self._tell(self._on_strays, queues, len(returned))
