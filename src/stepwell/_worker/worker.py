"""One worker: its services are started, drained and stopped in order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from stepwell._core.registry import Registry
from stepwell._dispatch.service import DispatchSetup
from stepwell._hooks.emitter import Emitter
from stepwell._notify.notifier import Notifier
from stepwell._process.daemon_threads import forget_pools_at_exit
from stepwell._process.service import STOP_GRACE, calm, together
from stepwell._process.stats import Stats
from stepwell._process.threads import Around
from stepwell._store.connection import notifications
from stepwell._store.connection.pool import Database
from stepwell._worker.build import Given, Graph, build, subscribe
from stepwell._worker.queue_slots import AllQueueSlots
from stepwell._worker.retirement import Retirement
from stepwell._worker.shutdown import WorkerState, say_left
from stepwell.config import Settings

log = logging.getLogger("stepwell")

CLOSING = 1.0  # seconds that a stopping worker takes beyond drain_timeout, at the most
CANCEL_GRACE = 0.4  # seconds in which a cancelled step may clean up


class Worker:
    """Claims and runs instances until it is stopped. Made by `engine.worker(...)`."""

    def __init__(
        self,
        *,
        database: Database,
        registry: Registry,
        notifier: Notifier,
        emitter: Emitter,
        settings: Settings,
        resources: Any,
        dispatch_setup: DispatchSetup,
        around_sync_steps: Around | None = None,
    ) -> None:
        self.stats = Stats()
        self.left_behind: list[str] = []  # steps that did not end while it stopped; their threads may run on
        self.retirement = Retirement(self._stop)
        self.end_block: Callable[[], object] = lambda: None  # of `engine.worker`, if the worker cannot continue
        self._database = database
        self._notifier = notifier
        self._settings = settings
        self._state = WorkerState()
        self._subscriptions = AsyncExitStack()
        self._graph = self._build(Given(
            database, registry, notifier, emitter, settings, resources, dispatch_setup, around_sync_steps, self.stats,
            self.retirement, self._state,
        ))  # fmt: skip
        for service in self._graph.services():
            service.on_cut_off = self._fail

    def _build(self, given: Given) -> Graph:
        return build(given, AllQueueSlots(given.settings.queues))

    @property
    def id(self) -> int | None:
        """The worker's id in the database; None while it has no lease."""
        return self._graph.registration.lease.current

    @property
    def running(self) -> int:
        """Claims of this worker."""
        return len(self._graph.active_claims)

    @property
    def stuck_threads(self) -> int:
        """Sync steps still running in threads; after a stop, those that outlived it."""
        return self._graph.executor.in_threads

    @property
    def statements(self) -> int:
        """Statements sent by the heartbeat's own connection."""
        return self._graph.upkeep.heartbeat.statements

    async def start(self) -> None:
        """Register, end the leases of dead workers of this host, and start the services."""
        graph, settings = self._graph, self._settings
        committing, upkeep = graph.committing, graph.upkeep
        freed = await graph.registration.declare()
        await graph.registration.enter()
        await self._notifier.listen()
        self._subscriptions = subscribe(graph, self._notifier)
        committing.committer.start()
        committing.spawner.start()
        if committing.transactional_runner is not None:
            await committing.transactional_runner.open()
        upkeep.heartbeat.start()
        graph.claimer.start()
        upkeep.fair_migration.start(after=None)  # the timers wake it
        upkeep.timers.start()
        upkeep.reaper.start(after=calm(settings.reap.total_seconds()))
        upkeep.pruner.start(after=calm(settings.prune.total_seconds()))
        graph.dispatch.start()
        await graph.registration.free_held()
        for queue in freed:
            self._notifier.notify_work(queue)
        log.info("worker %d: started with queues %s", graph.registration.lease.worker_id, dict(settings.queues))

    async def stop(self) -> None:
        """Stop claiming, release what has not started, finish what runs in time, leave the rest to the reaper: CLOSING
        seconds after `drain_timeout` at the latest, whatever the steps and the database do; at once if cancelled."""
        try:
            await self.retirement.end()
        except asyncio.CancelledError:
            self._cut()
            raise

    async def _stop(self) -> None:
        graph, upkeep, committing = self._graph, self._graph.upkeep, self._graph.committing
        patience = 0.0 if self._state.is_cut_off else self._settings.drain_timeout.total_seconds()
        until = asyncio.get_running_loop().time() + patience
        last = until + CLOSING
        soon = max(until, last - 0.6)
        self._state.is_stopping = True
        graph.all_queue_slots.close()
        in_time = await together(soon, graph.claimer.stop())
        await self._subscriptions.aclose()
        in_time &= await together(
            soon, graph.lost_claims.settle(), upkeep.timers.stop(), upkeep.fair_migration.stop(), upkeep.reaper.stop(),
            upkeep.pruner.stop(),
        )  # fmt: skip
        _, has_sent = await asyncio.gather(self._drain(until, soon), together(soon, graph.dispatch.stop(patience)))
        in_time &= has_sent
        works = [graph.releaser.finish(STOP_GRACE), committing.spawner.stop(), committing.committer.stop(),
                 graph.lost_claims.settle()]
        if committing.transactional_runner is not None:
            works.append(committing.transactional_runner.close())
        in_time &= await together(last - 0.3, *works)
        in_time &= await together(last - 0.15, upkeep.heartbeat.stop())
        in_time &= await together(last, self._leave())
        if not in_time:  # a statement that has no reply yet would hold up the end of the process
            for service in graph.services():
                service.cut()  # a service that was not stopped would take the end of the loop for a cancellation
            self._database.cut()

    async def _drain(self, until: float, soon: float) -> None:
        """Let steps that have started end, in time; release claims that have not started."""
        loop = asyncio.get_running_loop()
        await self._graph.starter.all_begun(max(0.0, soon - loop.time()))
        await together(soon + 0.1, self._graph.releaser.release_all())
        self.left_behind = await self._graph.executor.drain(until, CANCEL_GRACE)
        if self.stuck_threads:
            forget_pools_at_exit()
        say_left(self.left_behind, self.stuck_threads, is_orderly=self.retirement.is_orderly)

    async def _leave(self) -> None:
        is_orderly = self.retirement.is_orderly and not self._state.is_cut_off
        if await self._graph.registration.leave(is_orderly=is_orderly) and self.left_behind:
            self._notifier.publish(notifications.IDLE)

    def _cut(self) -> None:
        """End all services, since the stop was cancelled, without waiting; the reaper returns the claims."""
        graph = self._graph
        graph.upkeep.heartbeat.finish()
        for service in graph.services():
            service.cut()
        graph.active_claims.abandon(graph.active_claims.ids(), "the stop of this worker was cancelled")
        self._database.cut()

    def _fail(self) -> None:
        """A service was cancelled: start nothing more, and end the block; what had started counts as a crash."""
        if self._state.is_cut_off:
            return
        self._state.is_cut_off = True
        self._graph.all_queue_slots.close()
        log.error("worker: something in this process has cancelled the worker's tasks; it ends, and what had begun "
                  "counts as a crash")
        if not self._state.is_stopping:
            self.end_block()
