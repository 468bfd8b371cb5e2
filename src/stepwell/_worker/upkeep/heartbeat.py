"""Renews the lease, in a thread with its own loop and connection, so that a step that blocks the main loop keeps it.
Finds orphaned claims and lost claims."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from datetime import timedelta

from stepwell._core.store_errors import Misfit
from stepwell._lease.lease import Lease
from stepwell._process import probes
from stepwell._process.outages import ONCE
from stepwell._process.service import Service
from stepwell._store import instances, migrate
from stepwell._store.connection.pool import WORKER, Database
from stepwell._store.connection.settings import Bounds
from stepwell._store.connection.timeline import Timelines
from stepwell._store.migrate import Stamp
from stepwell._store.registrations import workers
from stepwell._store.registrations.workers import Beat
from stepwell._worker.active_claims import OPEN, ActiveClaims
from stepwell._worker.retirement import Retirement
from stepwell._worker.shutdown import WorkerState
from stepwell._worker.wakeups import Wakeups
from stepwell.errors import DatabaseError

log = logging.getLogger("stepwell")

PULSE = 0.25
BLOCKED = 1.0  # seconds that the main loop is blocked before a warning


class Heartbeat:
    """The thread: starts and stops the beats, which report to the main loop."""

    def __init__(
        self,
        *,
        database: Database,
        lease: Lease,
        active_claims: ActiveClaims,
        every: timedelta,
        wakeups: Wakeups,
        retirement: Retirement,
        state: WorkerState,
    ) -> None:
        self._main = asyncio.get_running_loop()
        self._lease = lease
        self._main_timelines = database.timelines  # of the main loop's connections
        self._timelines = Timelines(lease.timeline)  # of the connections in this thread
        self._timelines.on_change = self._report_timeline
        self._database = Database(
            database.dsn, session=WORKER, most=2, bounds=Bounds.of_heartbeat(lease.duration, every),
            timelines=self._timelines, outages=database.outages, schema=database.schema,
        )  # fmt: skip
        self._pulse = Pulse(self._main, active_claims, state)
        self._beats = Beats(
            database=self._database, lease=lease, active_claims=active_claims, every=every, pulse=self._pulse,
            main=self._main, wakeups=wakeups, retirement=retirement,
        )  # fmt: skip
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._finish: asyncio.Event | None = None
        self._is_ending = False
        self._ended = asyncio.Event()  # belongs to the main loop

    @property
    def statements(self) -> int:
        """Statements sent by this thread."""
        return self._database.statements

    def start(self) -> None:
        self._pulse.start()
        self._thread = threading.Thread(target=self._live, name="stepwell heartbeat", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        self.finish()
        if self._thread is not None:
            await self._ended.wait()
            self._thread = None

    def finish(self) -> None:
        """Let the thread end, without waiting for it."""
        self._pulse.stop()
        self._is_ending = True
        if self._loop is not None and self._finish is not None:
            with contextlib.suppress(RuntimeError):  # the thread's loop may be closed
                self._loop.call_soon_threadsafe(self._finish.set)

    def _live(self) -> None:
        try:
            asyncio.run(self._beat_until_finished())
        finally:
            self._report_ended()

    def _report_timeline(self) -> None:
        timeline, main = self._timelines.current, self._main_timelines
        if main is not None and timeline is not None and timeline != self._lease.timeline:
            with contextlib.suppress(RuntimeError):  # the main loop may be closed
                self._main.call_soon_threadsafe(main.switch_to, timeline)

    def _report_ended(self) -> None:
        with contextlib.suppress(RuntimeError):  # the main loop may be closed
            self._main.call_soon_threadsafe(self._ended.set)

    async def _beat_until_finished(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._finish = asyncio.Event()
        if self._is_ending:  # stopped before the event existed
            return
        self._beats.outages = self._database.outages
        await self._open_database()
        self._beats.start()
        await self._finish.wait()
        await self._beats.stop()
        await self._database.close()

    async def _open_database(self) -> None:
        pause, outages = 0.05, self._database.outages
        while self._finish is not None and not self._finish.is_set():
            try:
                await self._database.open()
            except DatabaseError as error:
                outages.failed(self, "heartbeat", error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 1.0)
            else:
                outages.works(self)
                return
        outages.left(self)


class Pulse:
    """Shows the heartbeat's thread that the main loop is running."""

    def __init__(self, loop: asyncio.AbstractEventLoop, active_claims: ActiveClaims, state: WorkerState) -> None:
        self._loop = loop
        self._active_claims = active_claims
        self._state = state
        self._last = time.monotonic()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._last = time.monotonic()
        self._timer = self._loop.call_later(PULSE, self.start)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    @property
    def is_cut_off(self) -> bool:
        """Whether the main loop has lost its services."""
        return self._state.is_cut_off

    @property
    def silence(self) -> float:
        """Seconds by which the next pulse of the main loop is overdue."""
        return time.monotonic() - self._last - PULSE

    def blocker(self) -> str:
        """The step, or another task, that blocks the main loop."""
        task = asyncio.current_task(self._loop)
        if task is None:
            return "unknown"
        return next((active.claim.label for active in self._active_claims.all() if active.task is task),
                    task.get_name())


class Beats(Service):
    """The service in the thread: one beat per interval, and checks of the main loop in between."""

    def __init__(
        self,
        *,
        database: Database,
        lease: Lease,
        active_claims: ActiveClaims,
        every: timedelta,
        pulse: Pulse,
        main: asyncio.AbstractEventLoop,
        wakeups: Wakeups,
        retirement: Retirement,
    ) -> None:
        super().__init__("heartbeat")
        self._database = database
        self._lease = lease
        self._active_claims = active_claims
        self._every = every
        self._pulse = pulse
        self._main = main
        self._wakeups = wakeups
        self._retirement = retirement
        self._next_beat = time.monotonic() + every.total_seconds()
        self._warned = False
        # After an outage a worker has one lease to beat again (find_lost.sql); a longer backoff would get it reaped.
        self._backoff.longest = min(self._backoff.longest, every.total_seconds())

    def start(self, after: float | None = 0.0) -> None:
        self._next_beat = time.monotonic() + self._every.total_seconds()
        super().start(after)

    def ended(self) -> None:
        self.outages.left(ONCE)

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
        """A main loop that was blocked for a whole lease, or has no services, does no work: let the lease expire."""
        return self._pulse.is_cut_off or self._pulse.silence > self._lease.duration.total_seconds()

    async def _beat(self, worker_id: int) -> None:
        timelines, timeline = self._database.timelines, self._lease.timeline
        if timelines is not None and timeline is not None:
            timelines.switch_to(timeline)  # the worker is registered on this timeline
        if self._lease.current != worker_id:
            return
        held = [active for active in self._active_claims.all() if active.stage is OPEN]
        claims = [active.claim for active in held]
        running = sum([active.task is not None for active in held])
        beat = await self._renew(worker_id, running)
        self.outages.works(ONCE)
        if beat is None:
            self._main.call_soon_threadsafe(self._wakeups.lease_lost, worker_id)
            return
        gone = frozenset(claim for claim in claims if beat.carried.get(claim.id) != claim.fence)
        if gone:
            self._main.call_soon_threadsafe(self._wakeups.claims_doubted, gone)
        orphans = self._active_claims.give_back({i: beat.carried[i] for i in beat.old})
        if orphans:
            await self._release_orphans(worker_id, beat, orphans)
        if probes.hooks:
            await probes.reach("heartbeat.beaten", worker_id=worker_id)

    async def _renew(self, worker_id: int, running: int) -> Beat | None:
        """Renew the lease, and check that this code may still run on the schema, also if the beat fails on it."""
        try:
            beat = await workers.beat(
                self._database, worker_id, self._lease.place, self._lease.duration, running, self._every
            )
        except Misfit:
            self._check(await migrate.current_stamp(self._database))
            raise
        if beat is not None:
            self._check(beat.stamp)
        return beat

    def _check(self, stamp: Stamp) -> None:
        if (problem := stamp.problem) is not None:
            self._main.call_soon_threadsafe(self._retirement.begin, problem)

    async def _release_orphans(self, worker_id: int, beat: Beat, orphans: list[int]) -> None:
        """Release orphaned claims: this worker never received the reply to their claim statement.

        A row that was committed or claimed again after the beat has another fence, and is not released.
        """
        lost = [(i, beat.carried[i], beat.old[i]) for i in orphans]
        returned, queues = await instances.release(self._database, worker_id, lost)
        if returned:
            self._main.call_soon_threadsafe(self._wakeups.orphans_returned, queues, len(returned))
