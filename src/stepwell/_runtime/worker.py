"""One worker: its services, started and stopped in order, and what happens when its lease is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from msgspec.structs import replace

from stepwell._core.faults import StoreFault
from stepwell._core.records import Claim
from stepwell._core.registry import Registry
from stepwell._runtime.announcer import Announcer
from stepwell._runtime.asking import Asking, World
from stepwell._runtime.caller import Caller
from stepwell._runtime.claimer import MOST_UNCOMMITTED, Claimer
from stepwell._runtime.emitter import Emitter
from stepwell._runtime.executor import Executor
from stepwell._runtime.filler import Filler
from stepwell._runtime.flusher import Flusher
from stepwell._runtime.hands import Hands
from stepwell._runtime.heartbeat import Heartbeat
from stepwell._runtime.intake import Intake
from stepwell._runtime.landing import is_ours
from stepwell._runtime.lanes import Lane, Lanes
from stepwell._runtime.lease import Lease
from stepwell._runtime.limiter import Limiter
from stepwell._runtime.notifier import Notifier
from stepwell._runtime.nursery import Nursery
from stepwell._runtime.pruner import Pruner
from stepwell._runtime.reaper import Reaper
from stepwell._runtime.reception import Reception, Receptions
from stepwell._runtime.releases import Releases
from stepwell._runtime.reservations import Reservations
from stepwell._runtime.runs import Surroundings
from stepwell._runtime.sharer import Sharer
from stepwell._runtime.tally import Tally
from stepwell._runtime.threads import Around
from stepwell._runtime.timers import Timers
from stepwell._runtime.transactions import Transactor
from stepwell._service import STOP_GRACE, calm
from stepwell._store import instances, limits, machines, notices, queues, transactions, units
from stepwell._store.database import Database
from stepwell._store.instances import Trace
from stepwell.config import Settings

log = logging.getLogger("stepwell")

LARGEST_SPAWN = 300  # rows of one commit of spawns: the first children run while the next are inserted

class Worker:
    """Claims and runs instances until it is stopped. Made by `engine.worker(...)`."""

    def __init__(
        self,
        *,
        database: Database,
        registry: Registry,
        notifier: Notifier,
        receptions: Receptions,
        emitter: Emitter,
        settings: Settings,
        resources: Any,
        world: World,
        around_sync_steps: Around | None = None,
    ) -> None:
        self.tally = Tally()
        self._database = database
        self._registry = registry
        self._notifier = notifier
        self._receptions = receptions
        self._emitter = emitter
        self._settings = settings
        self._hands = Hands()
        self._lanes = Lanes(settings.queues)
        self._lease = Lease(database, settings.queues, registry.labels(), settings.lease)
        self._renewals: set[asyncio.Task[None]] = set()
        self._doubted: set[Claim] = set()  # a notice says that they are lost
        self._doubts: asyncio.Task[None] | None = None
        self._subscriptions = AsyncExitStack()
        self._is_stopping = False
        self._build(resources, world, around_sync_steps)

    def _build(self, resources: Any, world: World, around_sync_steps: Around | None) -> None:
        settings = self._settings
        self._asking = Asking(
            world, database=self._database, lease=self._lease, tally=self.tally, every=settings.reap,
            expect_due=lambda seconds: self._timers.expect(seconds),  # noqa: PLW0108 - they are made later
        )  # fmt: skip
        self._sharer = Sharer(database=self._database, notifier=self._notifier, lanes=self._lanes)
        self._timers = Timers(
            database=self._database, notifier=self._notifier, lanes=self._lanes, wake_claimer=self._wake_claimer,
            give_back=self._give_back, wake_sharer=self._sharer.wake, transports=self._asking.wakes,
            settled=world.settled, poll=settings.poll, max_poll=settings.max_poll,
        )  # fmt: skip
        announcer = Announcer(self._notifier, self._emitter, self._timers.expect)
        self._flusher = Flusher(self._database, announcer, self.tally)
        reservations = self._build_reservations()
        self._spawner = Flusher(
            self._database, announcer, self.tally, name="spawner", most_rows=LARGEST_SPAWN,
            nursery=Nursery(reservations, self._registry.labels()),
        )  # fmt: skip
        self._transactor = self._build_transactor(announcer) if self._registry.is_transactional else None
        caller = Caller(self._lanes.slots, around_sync_steps)
        self._executor = Executor(
            flusher=self._flusher, spawner=self._spawner, hands=self._hands, lanes=self._lanes, tally=self.tally,
            transactor=self._transactor,
            surroundings=Surroundings(
                self._registry, settings.max_payload, resources, partial(units.outputs, self._database),
                caller.keep_thread,
            ), run_ahead=settings.run_ahead,
            caller=caller, filler=Filler(self._database, caller, self._notifier, self._timers.expect),
        )  # fmt: skip
        self._intake = Intake(
            database=self._database, hands=self._hands, lanes=self._lanes, tally=self.tally,
            launch=self._executor.launch, on_room=self._wake_claimer, on_lease_lost=self._lose_lease,
        )  # fmt: skip
        self._executor.places = self._intake
        self._reception = Reception(
            lanes=self._lanes, intake=self._intake, reservations=reservations, labels=self._registry.labels()
        )
        self._releases = Releases(self._database, self._notifier, self._intake.released)
        limiter = Limiter(
            database=self._database, notifier=self._notifier, emitter=self._emitter, lease=self._lease,
            expect=self._timers.expect,
        )  # fmt: skip
        self._claimer = Claimer(
            database=self._database, registry=self._registry, notifier=self._notifier, lease=self._lease,
            lanes=self._lanes, intake=self._intake, flushers=(self._flusher, self._spawner), limiter=limiter,
            prefetch=settings.prefetch, min_demand=settings.min_demand, give_back=self._give_back,
        )  # fmt: skip
        self._reaper = Reaper(
            database=self._database, notifier=self._notifier, emitter=self._emitter, lease=self._lease,
            tally=self.tally, every=settings.reap, max_crashes=settings.max_crashes,
            forget_versions=self._claimer.forget_versions,
        )  # fmt: skip
        self._pruner = Pruner(self._database, settings.prune)
        self._heartbeat = Heartbeat(
            dsn=self._database.dsn, lease=self._lease, hands=self._hands, every=settings.heartbeat,
            on_lost=self._lose_lease, on_gone=self._lose_claims, on_strays=self._note_strays,
        )  # fmt: skip

    def _build_reservations(self) -> Reservations:
        return Reservations(
            lanes=self._lanes, lease=self._lease, take=self._take_unasked, on_room=self._wake_claimer,
            on_left=self._notifier.announce_idle,
            is_laden=lambda: self._flusher.is_laden or self._flusher.waiting >= MOST_UNCOMMITTED,
        )  # fmt: skip

    def _build_transactor(self, announcer: Announcer) -> Transactor:
        settings = self._settings
        pool = transactions.transactions(
            self._database.dsn, settings.transactional_session, settings.transactional_pool
        )
        return Transactor(
            pool=pool, database=self._database, flusher=self._flusher, announcer=announcer, tally=self.tally
        )

    @property
    def id(self) -> int | None:
        """The worker's id in the database; None while it has no lease."""
        return self._lease.worker_id if self._lease.is_held else None

    @property
    def running(self) -> int:
        """Claims in hand."""
        return len(self._hands)

    @property
    def stuck_threads(self) -> int:
        """Sync steps still running in threads; after a stop, those that outlived it."""
        return self._executor.in_threads

    @property
    def statements(self) -> int:
        """Statements sent by the heartbeat's own connection."""
        return self._heartbeat.statements

    async def start(self) -> None:
        """Register, bury dead predecessors of this host, and start the services."""
        await machines.register(self._database, self._registry.all(), self._settings.retention)
        let_go = await limits.declare(self._database, self._registry.limits.all())
        await self._declare_queues()
        await self._enter()
        await self._notifier.listen()
        self._subscribe()
        self._flusher.start()
        self._spawner.start()
        if self._transactor is not None:
            await self._transactor.open()
        self._heartbeat.start()
        self._claimer.start()
        self._sharer.start(after=None)  # the timers tell it
        self._timers.start()
        self._reaper.start(after=calm(self._settings.reap.total_seconds()))
        self._pruner.start(after=calm(self._settings.prune.total_seconds()))
        self._asking.start()
        await self._free_held()
        for queue in let_go:
            self._notifier.announce_work(queue)
        log.info("worker %d: started with queues %s", self._lease.worker_id, dict(self._settings.queues))

    async def stop(self) -> None:
        """Stop claiming, release what has not begun, finish what runs in time, leave the rest to the reaper."""
        self._is_stopping = True
        self._lanes.close()
        await self._claimer.stop()
        await self._subscriptions.aclose()
        if self._doubts is not None:
            await self._doubts
        await self._timers.stop()
        await self._sharer.stop()
        await self._reaper.stop()
        await self._pruner.stop()
        patience = self._settings.drain_timeout.total_seconds()
        await self._asking.stop(patience)
        await self._reception.settle(max(patience, STOP_GRACE))
        await self._intake.all_begun(max(patience, STOP_GRACE))
        await self._releases.release(self._intake.unbegun())
        left = await self._executor.drain(patience)
        await self._releases.finish(STOP_GRACE)
        if left:
            log.warning("worker: %d steps did not end within drain_timeout; the reaper returns them", left)
        if self._transactor is not None:
            await self._transactor.close()
        await self._spawner.stop()
        await self._flusher.stop()
        await self._heartbeat.stop()
        try:
            await self._lease.end()
        except StoreFault as error:
            log.warning("worker: could not end its lease (%s); it runs out by itself", error)
            return
        if left:
            self._notifier.announce_idle()

    async def _enter(self) -> None:
        await self._lease.take()
        reaped, freed = await self._lease.bury_predecessors(self._settings.max_crashes)
        self._reaper.report(reaped, freed)

    async def _declare_queues(self) -> None:
        """Write how this worker's queues are shared out; where others have said otherwise, the last one holds."""
        fair_by = self._settings.fair_by
        self._lanes.note_fair(fair_by)
        declared = await queues.declare(self._database, {name: fair_by.get(name) for name in self._settings.queues})
        for queue in declared:
            how = "not shared out" if queue.fair_by is None else f"shared out by {queue.fair_by}"
            if queue.is_changed:
                log.warning("worker: queue %r is %s from now on; it was declared otherwise before, and the last worker "
                            "to start decides: see the setting fair_by", queue.queue, how)
            else:
                log.info("worker: queue %r is %s", queue.queue, how)
        if declared:
            self._notifier.announce_queues()

    async def _free_held(self) -> None:
        """Free what waited for code that this worker brings."""
        queues = await instances.unhold_version(
            self._database, self._registry.labels(), self._registry.upcasting(), also_unfit=True
        )
        for queue in queues:
            self._notifier.announce_work(queue)

    def _subscribe(self) -> None:
        self._subscriptions.callback(self._notifier.subscribe(notices.WORK, self._hear_work))
        self._subscriptions.callback(self._notifier.subscribe(notices.DUE, lambda _: self._timers.wake()))
        self._subscriptions.callback(self._notifier.subscribe(notices.QUEUES, lambda _: self._timers.wake()))
        self._subscriptions.callback(self._notifier.subscribe(notices.REVOKED, self._doubt_revoked))
        self._subscriptions.callback(self._notifier.subscribe(notices.REVOKED_HERE, self._stop_revoked))
        self._subscriptions.callback(self._notifier.subscribe(notices.IDLE, lambda _: self._reaper.wake()))
        self._subscriptions.callback(self._notifier.subscribe(notices.DISPATCH, self._asking.take))
        self._subscriptions.callback(self._notifier.offer_to(self._take_offer))
        self._subscriptions.callback(self._notifier.send_by(self._asking.take))
        self._subscriptions.callback(self._receptions.add(self._reception))

    def _hear_work(self, queue: str) -> None:
        """A notice of work; an empty one says that some may have been missed."""
        if not queue:
            self._timers.wake()
        elif self._lanes.mark_ready(queue):
            self._wake_claimer()

    def _revoked(self, payload: str) -> frozenset[Claim]:
        """The claim in our hands that an operator took away, as a notice says. A newer claim of it is another."""
        id_, fence = map(notices.read_number, payload.partition(" ")[::2])
        hand = None if id_ is None else self._hands.get(id_)
        return frozenset() if hand is None or fence is None or hand.claim.fence >= fence else frozenset({hand.claim})

    def _stop_revoked(self, payload: str) -> None:
        self._lose_claims(self._revoked(payload))

    def _doubt_revoked(self, payload: str) -> None:
        self._doubted |= self._revoked(payload)
        if self._doubted and (self._doubts is None or self._doubts.done()):
            self._doubts = asyncio.create_task(self._settle_doubts(), name="stepwell doubts")

    async def _settle_doubts(self) -> None:
        """Stop the steps of claims that are lost indeed: a notice is no proof, the row is."""
        while self._doubted:
            claims, self._doubted = self._doubted, set()
            try:
                traces = await instances.verify(self._database, [claim.id for claim in claims])
            except StoreFault as error:
                log.warning("worker: can not look after %d claims (%s); the heartbeat does", len(claims), error)
                return
            self._lose_claims(frozenset(claim for claim in claims if not _is_held(claim, traces.get(claim.id))))

    def _take_offer(self, queue: str, count: int) -> bool:
        """Work announced in this process: True if there is room here for all of it."""
        has_room = self._lanes.free(queue) >= count
        self._hear_work(queue)
        return has_room

    def _wake_claimer(self) -> None:
        self._claimer.wake()

    async def _give_back(self, lane: Lane, keep: int = 0, patience: float = 0.0) -> None:
        """Give back what waits for a slot: to begin, but for the first so many, or so long to go on."""
        await self._releases.release([*self._intake.unreturned(lane, patience), *self._intake.unbuffered(lane, keep)])

    def _take_unasked(self, lane: Lane, claims: Sequence[Claim]) -> None:
        """Begin what has come without a claim; a worker that stops leaves it to others at once."""
        if not lane.is_closed:
            self._intake.take(lane, claims)
            return
        self._releases.release_soon(list(claims))

    def _lose_lease(self, worker_id: int) -> None:
        """The lease is gone: stop its steps, and start anew under a new id."""
        if not self._lease.is_held or self._lease.worker_id != worker_id:
            return
        self._lease.drop()
        self.tally.leases_lost += 1
        stopped = self._hands.abandon(self._hands.ids(), "the lease of this worker is lost")
        self._intake.released(self._intake.unbegun())  # they go with the lease
        log.error("worker %d: the lease is lost; %d steps were stopped, starting anew", worker_id, stopped)
        if not self._is_stopping:
            renewal = asyncio.create_task(self._renew(), name="stepwell renewal")
            self._renewals.add(renewal)
            renewal.add_done_callback(self._renewals.discard)

    async def _renew(self) -> None:
        pause = 0.05
        while not self._is_stopping:
            try:
                await self._enter()
                await self._free_held()
            except StoreFault as error:
                log.warning("worker: can not start anew yet: %s", error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, 5.0)
            else:
                self._timers.wake()
                self._wake_claimer()
                return

    def _lose_claims(self, claims: frozenset[Claim]) -> None:
        """Single claims are gone (reaped, or given back): stop their steps. What was claimed anew since is not."""
        hands = [self._hands.get(claim.id) for claim in claims]
        lost = []
        for hand in hands:
            if hand is None or hand.claim not in claims:
                continue
            if hand.submitted:
                hand.revoked = True  # the fence decides about its outcome; it goes no further
            else:
                lost.append(hand.claim.id)
        if lost:
            self._hands.abandon(lost, "the claim of this step is lost")
            log.warning("worker: %d claims were lost; their steps were stopped", len(lost))

    def _note_strays(self, queues: list[str], count: int) -> None:
        self.tally.strays += count
        log.warning("worker: %d claims whose answer was lost were returned", count)
        for queue in set(queues):
            self._notifier.announce_work(queue)


def _is_held(claim: Claim, trace: Trace | None) -> bool:
    """Whether the row is still the claim's, perhaps one step further by now."""
    return is_ours(claim, trace) or is_ours(replace(claim, fence=claim.fence + 1), trace)
