"""Builds the graph of one worker's services: each service receives the services that it calls in its constructor.

Calls in the other direction go through `Wakeups`, which is connected last.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial
from typing import Any, NamedTuple

from stepwell._core.registry import Registry
from stepwell._dispatch.service import DispatchService, DispatchSetup
from stepwell._hooks.emitter import Emitter
from stepwell._lease.lease import Lease
from stepwell._notify.notifier import Notifier
from stepwell._process.service import Service
from stepwell._process.stats import Stats
from stepwell._process.threads import Around
from stepwell._store import await_units
from stepwell._store.connection import notifications
from stepwell._store.connection.pool import Database
from stepwell._worker.active_claims import ActiveClaims
from stepwell._worker.claiming.claimer import Claimer
from stepwell._worker.claiming.holds import Holds
from stepwell._worker.claiming.limits import Limiter
from stepwell._worker.claiming.release import ClaimReleaser
from stepwell._worker.committing.announcer import Announcer
from stepwell._worker.committing.child_slots import ChildSlots
from stepwell._worker.committing.committer import Committer
from stepwell._worker.queue_slots import AllQueueSlots
from stepwell._worker.recovery import Recovery
from stepwell._worker.registration import Registration
from stepwell._worker.retirement import Retirement
from stepwell._worker.running.ask_each import IncrementalAsk
from stepwell._worker.running.executor import Executor
from stepwell._worker.running.invoke import Invoker
from stepwell._worker.running.lost_claims import LostClaims
from stepwell._worker.running.starter import Starter
from stepwell._worker.running.step_calls import StepCalls
from stepwell._worker.running.step_run import Surroundings
from stepwell._worker.running.transactional import TransactionalRunner
from stepwell._worker.shutdown import WorkerState
from stepwell._worker.upkeep.fair_migration import FairMigration
from stepwell._worker.upkeep.heartbeat import Heartbeat
from stepwell._worker.upkeep.pruner import Pruner
from stepwell._worker.upkeep.reaper import Reaper
from stepwell._worker.upkeep.timers import Timers
from stepwell._worker.wakeups import Wakeups
from stepwell.config import Settings

LARGEST_SPAWN = 300  # rows of one commit of spawns; so the first children run while the next are inserted


class Given(NamedTuple):
    """What a worker receives from its engine, and its own state beside the services."""

    database: Database
    registry: Registry
    notifier: Notifier
    emitter: Emitter
    settings: Settings
    resources: Any
    dispatch_setup: DispatchSetup
    around_sync_steps: Around | None
    stats: Stats
    retirement: Retirement
    state: WorkerState


class Shared(NamedTuple):
    """The objects that most services of a worker share."""

    lease: Lease
    active_claims: ActiveClaims
    all_queue_slots: AllQueueSlots
    wakeups: Wakeups


class Committing(NamedTuple):
    """The services that commit outcomes."""

    committer: Committer
    spawner: Committer  # commits outcomes that insert children, so that other outcomes do not wait for these
    transactional_runner: TransactionalRunner | None


class Upkeep(NamedTuple):
    """The background services of a worker."""

    timers: Timers
    fair_migration: FairMigration
    reaper: Reaper
    pruner: Pruner
    heartbeat: Heartbeat


class Graph(NamedTuple):
    """The services of one worker."""

    all_queue_slots: AllQueueSlots
    active_claims: ActiveClaims
    registration: Registration
    claimer: Claimer
    releaser: ClaimReleaser
    starter: Starter
    executor: Executor
    committing: Committing
    upkeep: Upkeep
    dispatch: DispatchService
    recovery: Recovery
    lost_claims: LostClaims

    def services(self) -> list[Service]:
        """All services that tick in the main loop."""
        committing, upkeep = self.committing, self.upkeep
        return [
            self.claimer, committing.committer, committing.spawner, upkeep.timers, upkeep.fair_migration,
            upkeep.reaper, upkeep.pruner, *self.dispatch.services,
        ]  # fmt: skip


def build(given: Given, all_queue_slots: AllQueueSlots) -> Graph:
    """Create all services of a worker, without starting any."""
    database, settings = given.database, given.settings
    lease = Lease(database, settings.queues, given.registry.labels(), settings.lease)
    shared = Shared(lease, ActiveClaims(), all_queue_slots, Wakeups())
    fair_migration, timers = _timers(given, shared)
    dispatch = DispatchService(
        given.dispatch_setup, database=database, lease=lease, stats=given.stats, every=settings.reap,
        expect_due=timers.expect,
    )  # fmt: skip
    starter = Starter(
        database=database, active_claims=shared.active_claims, all_queue_slots=all_queue_slots, stats=given.stats,
        wakeups=shared.wakeups,
    )  # fmt: skip
    committing = _committing(given, shared)
    executor = _executor(given, shared, starter, committing)
    releaser = ClaimReleaser(database, given.notifier, starter.withdrawals)
    claimer, holds = _claimer(given, shared, starter, committing, releaser)
    reaper = Reaper(
        database=database, notifier=given.notifier, emitter=given.emitter, lease=lease, stats=given.stats,
        every=settings.reap, max_crashes=settings.max_crashes, authored=given.registry.authored(),
        wakeups=shared.wakeups,
    )  # fmt: skip
    heartbeat = Heartbeat(
        database=database, lease=lease, active_claims=shared.active_claims, every=settings.heartbeat,
        wakeups=shared.wakeups, retirement=given.retirement, state=given.state,
    )  # fmt: skip
    upkeep = Upkeep(timers, fair_migration, reaper, Pruner(database, lease, settings.prune), heartbeat)
    registration = Registration(
        database=database, registry=given.registry, notifier=given.notifier, settings=settings,
        all_queue_slots=all_queue_slots, lease=lease, reaper=reaper,
    )  # fmt: skip
    recovery = Recovery(
        database=database, notifier=given.notifier, registration=registration, active_claims=shared.active_claims,
        withdrawals=starter.withdrawals, timers=timers, wakeups=shared.wakeups, retirement=given.retirement,
        state=given.state, stats=given.stats,
    )  # fmt: skip
    graph = Graph(
        all_queue_slots, shared.active_claims, registration, claimer, releaser, starter, executor, committing, upkeep,
        dispatch, recovery, LostClaims(database, shared.active_claims, starter.withdrawals),
    )  # fmt: skip
    _connect(shared.wakeups, graph, holds)
    for service in graph.services():
        service.outages = database.outages
    if database.timelines is not None:
        database.timelines.on_change = recovery.leave_timeline
    return graph


def _timers(given: Given, shared: Shared) -> tuple[FairMigration, Timers]:
    fair_migration = FairMigration(
        database=given.database, notifier=given.notifier, all_queue_slots=shared.all_queue_slots
    )
    timers = Timers(
        database=given.database, notifier=given.notifier, all_queue_slots=shared.all_queue_slots,
        fair_migration=fair_migration, dispatch_setup=given.dispatch_setup, wakeups=shared.wakeups,
        poll=given.settings.poll, max_poll=given.settings.max_poll,
    )  # fmt: skip
    return fair_migration, timers


def _committing(given: Given, shared: Shared) -> Committing:
    database, registry, stats = given.database, given.registry, given.stats
    announcer = Announcer(given.notifier, given.emitter, shared.wakeups)
    committer = Committer(database, announcer, stats)
    child_slots = ChildSlots(
        all_queue_slots=shared.all_queue_slots, lease=shared.lease, labels=registry.labels(),
        commit_queue=committer.queue, notifier=given.notifier, wakeups=shared.wakeups,
    )  # fmt: skip
    spawner = Committer(
        database, announcer, stats, name="spawner", most_rows=LARGEST_SPAWN, child_slots=child_slots
    )
    runner = None
    if registry.is_transactional:
        runner = TransactionalRunner(database, given.settings, committer.queue, announcer, stats)
    return Committing(committer, spawner, runner)


def _executor(given: Given, shared: Shared, starter: Starter, committing: Committing) -> Executor:
    database, settings = given.database, given.settings
    invoker = Invoker(shared.all_queue_slots.slots, given.around_sync_steps)
    incremental_ask = IncrementalAsk(database, invoker, given.notifier, shared.wakeups)
    return Executor(
        commit_queue=committing.committer.queue, spawn_queue=committing.spawner.queue,
        active_claims=shared.active_claims,
        all_queue_slots=shared.all_queue_slots, ready_queue=starter.ready_queue,
        step_calls=StepCalls(invoker, incremental_ask, committing.transactional_runner, given.stats),
        incremental_ask=incremental_ask, run_ahead=settings.run_ahead,
        surroundings=Surroundings(
            given.registry, settings.max_payload, given.resources, partial(await_units.outputs, database),
            invoker.keep_thread,
        ),
    )  # fmt: skip


def _claimer(
    given: Given, shared: Shared, starter: Starter, committing: Committing, releaser: ClaimReleaser
) -> tuple[Claimer, Holds]:
    limiter = Limiter(
        database=given.database, notifier=given.notifier, emitter=given.emitter, lease=shared.lease,
        wakeups=shared.wakeups,
    )  # fmt: skip
    holds = Holds(given.database, given.registry, given.notifier, limiter)
    claimer = Claimer(
        database=given.database, lease=shared.lease, all_queue_slots=shared.all_queue_slots, starter=starter,
        ready_queue=starter.ready_queue, commit_queues=(committing.committer.queue, committing.spawner.queue),
        limiter=limiter, holds=holds, releaser=releaser, settings=given.settings,
    )  # fmt: skip
    return claimer, holds


def _connect(wakeups: Wakeups, graph: Graph, holds: Holds) -> None:
    wakeups.connect(
        work_available=graph.claimer.wake,
        due_in=graph.upkeep.timers.expect,
        step_ready=graph.executor.step_batch.put,
        children_claimed=graph.claimer.take_children,
        limit_slots_freed=graph.committing.committer.slot_releases.offer,
        interactions_waiting=graph.dispatch.wake_for_due,
        queues_paused=graph.releaser.note_paused,
        versions_changed=holds.forget_versions,
        lease_lost=graph.recovery.lose_lease,
        claims_doubted=graph.lost_claims.doubt,
        orphans_returned=graph.recovery.note_orphans,
    )


def subscribe(graph: Graph, notifier: Notifier) -> AsyncExitStack:
    """Subscribe the services to notifications of this and other processes; closing the stack ends that."""
    claimer, timers, dispatch = graph.claimer, graph.upkeep.timers, graph.dispatch

    def hear_work(queue: str) -> None:
        if queue:
            claimer.hear_work(queue)
        else:  # some notifications may have been missed
            timers.wake()

    stack = AsyncExitStack()
    for channel, hear in (
        (notifications.WORK, hear_work),
        (notifications.DUE, lambda _: timers.wake()),
        (notifications.QUEUES, lambda _: timers.wake()),
        (notifications.REVOKED, graph.lost_claims.hear),
        (notifications.REVOKED_HERE, graph.lost_claims.hear_here),
        (notifications.IDLE, lambda _: graph.upkeep.reaper.wake()),
        (notifications.DISPATCH, dispatch.take),
        (notifications.CLEANUP, lambda _: dispatch.clean_up()),
    ):
        stack.callback(notifier.subscribe(channel, hear))
    stack.callback(notifier.offer_to(claimer.hear_offer))
    stack.callback(notifier.send_by(dispatch.take))
    return stack
