"""A worker that a drain controls: it claims only when told to, and can die as a killed process does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from stepwell._core.instance import Claim, Instance
from stepwell._dispatch.dispatcher import Dispatcher
from stepwell._dispatch.service import DispatchService
from stepwell._notify.notifier import Notifier
from stepwell._store import instances
from stepwell._store.operations.claim import Claimed
from stepwell._store.registrations.workers import StartedClaims
from stepwell._worker.build import Given, Graph, build
from stepwell._worker.claiming.claimer import Claimer
from stepwell._worker.queue_slots import AllQueueSlots, QueueSlots, Turns
from stepwell._worker.upkeep.timers import Timers
from stepwell._worker.worker import Worker
from stepwell.errors import HarnessError
from stepwell.testing.transports.scripted import Scripted
from stepwell.transports import Admit

Take = Callable[[QueueSlots, Sequence[Claim], StartedClaims | None], None]
MakeClaim = Callable[..., Coroutine[Any, Any, Claimed | None]]


class OpenQueueSlots(AllQueueSlots):
    """Queue slots for any queue that is asked for: a drain runs all queues there are."""

    def __init__(self, queues: Mapping[str, int]) -> None:
        super().__init__(queues)
        self.rest()

    def __getitem__(self, queue: str) -> QueueSlots:
        if queue not in self._all_queue_slots:
            self._all_queue_slots[queue] = QueueSlots(queue, 0)
            self._all_queue_slots[queue].backlog.turns = Turns()  # fair or not: it finds what either kind of queue has
        return self._all_queue_slots[queue]

    def rest(self) -> None:
        """Let claims take nothing until the slots of a queue are marked ready again."""
        for queue_slots in self:
            queue_slots.backlog.ready = False


class ManualClaimer(Claimer):
    """Claims only when it is told to."""

    def start(self, after: float | None = 0.0) -> None:
        """Do nothing: a drain calls it step by step."""


class ManualTimers(Timers):
    """Reads the clock only when it is told to."""

    def start(self, after: float | None = 0.0) -> None:
        """Do nothing: a drain calls it step by step."""


class ManualDispatch(DispatchService):
    """Sends interactions and brings completions in only when it is told to; after its death it sends nothing."""

    def start(self) -> None:
        """Do nothing: a drain calls it step by step."""

    async def go_round(self, admit: Admit, patience: float) -> bool:
        """Send the waiting interactions, and bring in the completions of scripts; False if there was neither."""
        sent = [await self._send(dispatcher, patience) for dispatcher in self._dispatchers.values()]
        brought = [
            await opened.transport.bring(admit) for opened in self._opened if isinstance(opened.transport, Scripted)
        ]
        return any(sent) or any(brought)

    async def take_over(self) -> None:
        """Let what dead workers were sending be sent again."""
        await self._reconciler._send_again()  # noqa: SLF001 - a dispatcher of the kit

    async def die(self) -> None:
        """End all sendings and connections, as the death of the process does."""
        for dispatcher in self._dispatchers.values():
            sending = list(dispatcher._sending)  # noqa: SLF001 - a killed process calls no method
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
        for opened in self._opened:
            await opened.close(self._lease)

    async def _send(self, dispatcher: Dispatcher, patience: float) -> bool:
        """One round of a dispatcher, from the claim to the recorded results."""
        await dispatcher.tick()
        sending = list(dispatcher._sending)  # noqa: SLF001 - a dispatcher of the kit
        if not sending:
            return False
        _, left = await asyncio.wait(sending, timeout=patience)
        if left:
            raise HarnessError(f"{dispatcher.transport.name} has been sending for {patience:g} s: give it a shorter "
                               "timeout, or use a Scripted one")
        await dispatcher.claimed.record()
        return True


class Still:
    """Replaces a service that a drain does not need: a drain ends before a lease could run out."""

    statements = 0

    def start(self, after: float | None = 0.0) -> None:
        """Do nothing: a drain calls it step by step."""

    async def stop(self) -> None:
        """Nothing to stop."""

    def cut(self) -> None:
        """Nothing to cut."""

    finish = cut

    def report(self, reaped: object, freed: object) -> None:
        """Nothing waits for this notification."""


class Unlistening:
    """A notifier that does not listen to other processes: a drain reads the database itself."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier

    async def listen(self) -> None:
        """Deliver the notifications of this process only."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._notifier, name)


class ManualWorker(Worker):
    """A real worker without loops of its own: the same claims, executor and commits, one after another."""

    def _build(self, given: Given) -> Graph:
        self._notifier = Unlistening(self._notifier)  # type: ignore[assignment]  # all else is the same
        graph = build(given._replace(notifier=self._notifier), OpenQueueSlots(given.settings.queues))
        self.taken: list[Claim] = []  # claimed, and not yet returned by `finish`
        starter, claimer = graph.starter, graph.claimer
        starter.take = self._take_noting(starter.take)  # type: ignore[assignment, method-assign]
        claimer._claim = self._claim_noting(claimer._claim)  # type: ignore[method-assign]  # noqa: SLF001
        graph.dispatch.__class__ = ManualDispatch
        claimer.__class__ = ManualClaimer
        graph.upkeep.timers.__class__ = ManualTimers
        still: Any = Still()  # of the fair migration too: a drain's claims find rows wherever they are
        graph.registration._reaper = still  # noqa: SLF001 - nothing waits for its notifications
        upkeep = graph.upkeep._replace(fair_migration=still, reaper=still, pruner=still, heartbeat=still)
        return graph._replace(upkeep=upkeep)

    def _take_noting(self, take: Take) -> Take:
        def noting(queue_slots: QueueSlots, claims: Sequence[Claim], begun: StartedClaims | None = None) -> None:
            if begun is None:  # else it was noted with its claim
                self.taken += claims
            take(queue_slots, claims, begun)

        return noting

    def _claim_noting(self, claim: MakeClaim) -> MakeClaim:
        async def noting(*args: Any, **options: Any) -> Claimed | None:
            claimed = await claim(*args, **options)
            if claimed is not None and claimed.begun is not None:
                self.taken += claimed.claims
            return claimed

        return noting

    async def expire(self, dead: Sequence[int]) -> None:
        """Take over the claims and interactions of dead workers of this drain."""
        if dead:
            await self._graph.registration.expire(dead)
            await self._manual_dispatch.take_over()

    async def look_at_clock(self) -> None:
        """Make rows claimable that have come due."""
        await self._graph.upkeep.timers.tick()

    async def exchange_interactions(self, admit: Admit, patience: float) -> bool:
        """Send interactions, and bring in the completions of scripts; False if there was nothing to do."""
        return await self._manual_dispatch.go_round(admit, patience)

    @property
    def _manual_dispatch(self) -> ManualDispatch:
        assert isinstance(self._graph.dispatch, ManualDispatch)  # noqa: S101 - made so above
        return self._graph.dispatch

    async def claim(self, queue: str, most: int) -> None:
        """Claim from this queue, and begin what was claimed."""
        all_queue_slots = self._graph.all_queue_slots
        assert isinstance(all_queue_slots, OpenQueueSlots)  # noqa: S101 - made so above
        all_queue_slots.rest()
        queue_slots = all_queue_slots[queue]
        queue_slots.slots = queue_slots.running + most
        queue_slots.backlog.ready = True
        await self._graph.claimer.tick()
        await self._graph.starter.all_started()
        self._graph.starter.raise_fault()

    async def finish(self, patience: float) -> list[Claim]:
        """Wait, at most `patience` seconds, until a claim has ended and its slot is free; returns the ended ones."""
        waits = self._graph.active_claims.under_way()
        if waits and not self._ended():
            await asyncio.wait(waits, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        for committer in (self._graph.committing.committer, self._graph.committing.spawner):
            await committer.slot_releases.done()
        ended = self._ended()
        self.taken = [claim for claim in self.taken if claim not in ended]
        return ended

    def _ended(self) -> list[Claim]:
        held = {(active.claim.id, active.claim.fence) for active in self._graph.active_claims.all()}
        return [claim for claim in self.taken if (claim.id, claim.fence) not in held]

    async def read(self, claims: Sequence[Claim]) -> dict[int, Instance]:
        """The rows of these claims as they are now."""
        return {row.id: row for row in await instances.read(self._database, [claim.id for claim in claims])}

    async def die(self) -> None:
        """End without telling the database: connections are cut first, so that nothing more can be committed."""
        self._database.cut()
        self._state.is_stopping = True
        self._graph.all_queue_slots.close()
        tasks: list[asyncio.Task[None] | None] = [*self._graph.starter._beginnings, *self._graph.recovery.renewals]  # noqa: SLF001 - a killed process calls no method
        for committer in (self._graph.committing.committer, self._graph.committing.spawner):
            committer._stopping = True  # noqa: SLF001
            tasks += [*committer.apart, committer._task, committer.inbox_sweeper.task]  # noqa: SLF001
        for active in self._graph.active_claims.all():
            active.abandon("killed")
            tasks.append(active.task)
        begun = [task for task in tasks if task is not None]
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
        await self._subscriptions.aclose()
        await self._manual_dispatch.die()
        await self._graph.executor.drain(0.0, 1.0)
        if self._graph.committing.transactional_runner is not None:
            await self._graph.committing.transactional_runner.close()
