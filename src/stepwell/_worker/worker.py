"""A worker: starts, drains and stops its services in order."""

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
from stepwell._worker.shutdown import WorkerState, log_left
from stepwell.config import Settings

log = logging.getLogger("stepwell")

CLOSING = 1.0  # seconds beyond drain_timeout within which a stopping worker has stopped
CANCEL_GRACE = 0.4  # seconds in which a cancelled step may clean up


class Worker:
    """Claims and runs instances until it is stopped. Created by `engine.worker(...)`."""

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
        self.left_behind: list[str] = []  # steps that did not end in time; their threads may run
        self.retirement = Retirement(self._stop)
        self.end_block: Callable[[], object] = lambda: None  # ends `engine.worker`'s block
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
        """Sync steps that still run in threads, also after the worker stopped."""
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
        upkeep.fair_migration.start(after=None)  # the timers wake this service
        upkeep.timers.start()
        upkeep.reaper.start(after=calm(settings.reap.total_seconds()))
        upkeep.pruner.start(after=calm(settings.prune.total_seconds()))
        graph.dispatch.start()
        await graph.registration.free_held()
        for queue in freed:
            self._notifier.notify_work(queue)
        log.info("worker %d: started with queues %s", graph.registration.lease.worker_id, dict(settings.queues))

    async def stop(self) -> None:
        """Stop claiming, release claims that have not started, wait for running steps; the reaper takes the rest.

        Returns CLOSING seconds after `drain_timeout` at the latest, or at once if cancelled.
        """
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
        if not in_time:  # a statement without a reply would delay the exit of the process
            for service in graph.services():
                service.cut()  # else the end of the loop looks like a foreign cancellation
            self._database.cut()

    async def _drain(self, until: float, soon: float) -> None:
        """Wait for started steps until the deadline; release claims that have not started."""
        loop = asyncio.get_running_loop()
        await self._graph.starter.all_started(max(0.0, soon - loop.time()))
        await together(soon + 0.1, self._graph.releaser.release_all())
        self.left_behind = await self._graph.executor.drain(until, CANCEL_GRACE)
        if self.stuck_threads:
            forget_pools_at_exit()
        log_left(self.left_behind, self.stuck_threads, is_orderly=self.retirement.is_orderly)

    async def _leave(self) -> None:
        is_orderly = self.retirement.is_orderly and not self._state.is_cut_off
        if await self._graph.registration.leave(is_orderly=is_orderly) and self.left_behind:
            self._notifier.publish(notifications.IDLE)

    def _cut(self) -> None:
        """The stop was cancelled: end all services without waiting; the reaper returns the claims."""
        graph = self._graph
        graph.upkeep.heartbeat.finish()
        for service in graph.services():
            service.cut()
        graph.active_claims.abandon(graph.active_claims.ids(), "the stop of this worker was cancelled")
        self._database.cut()

    def _fail(self) -> None:
        """A service was cancelled: start no more steps, and end the block. Started steps count as crashes."""
        if self._state.is_cut_off:
            return
        self._state.is_cut_off = True
        self._graph.all_queue_slots.close()
        log.error("worker: other code in this process cancelled the worker's tasks; the worker stops, and started "
                  "steps count as crashes")
        if not self._state.is_stopping:
            self.end_block()
