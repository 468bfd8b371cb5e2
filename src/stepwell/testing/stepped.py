"""A worker that is led by hand: it claims when told to, and can die as a killed process does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from stepwell._core.records import Claim, Instance
from stepwell._runtime.asking import Asking
from stepwell._runtime.claimer import Claimer
from stepwell._runtime.dispatcher import Dispatcher
from stepwell._runtime.lanes import Lane, Lanes, Turns
from stepwell._runtime.notifier import Notifier
from stepwell._runtime.reception import Receptions
from stepwell._runtime.timers import Timers
from stepwell._runtime.worker import Worker
from stepwell._store import instances
from stepwell._store.instances import Claimed
from stepwell._store.workers import Begun
from stepwell.errors import HarnessError
from stepwell.testing.scripted import Scripted
from stepwell.transports import Admit

Take = Callable[[Lane, Sequence[Claim], Begun | None], None]
ClaimAtOnce = Callable[..., Coroutine[Any, Any, Claimed]]


class OpenLanes(Lanes):
    """A lane for whichever queue is asked for: a drain runs all queues there are."""

    def __init__(self, queues: Mapping[str, int]) -> None:
        super().__init__(queues)
        self.rest()

    def __getitem__(self, queue: str) -> Lane:
        if queue not in self._lanes:
            self._lanes[queue] = Lane(queue, 0)
            self._lanes[queue].turns = Turns()  # fair or not: it finds what either kind of queue has
        return self._lanes[queue]

    def rest(self) -> None:
        """Let a claim take nothing until a lane is marked again."""
        for lane in self:
            lane.ready = False


class LedClaimer(Claimer):
    """Claims only when it is told to."""

    def start(self, after: float | None = 0.0) -> None:
        """Stay still."""


class LedTimers(Timers):
    """Looks at the clock only when it is told to."""

    def start(self, after: float | None = 0.0) -> None:
        """Stay still."""


class LedAsking(Asking):
    """Sends and brings answers in only when it is told to; one that has died sends nothing any more."""

    def start(self) -> None:
        """Stay still."""

    async def go_round(self, admit: Admit, patience: float) -> bool:
        """Send what is to be sent, and bring in what a script replies; False if there was neither."""
        sent = [await self._send(dispatcher, patience) for dispatcher in self._dispatchers.values()]
        brought = [
            await opened.transport.bring(admit) for opened in self._opened if isinstance(opened.transport, Scripted)
        ]
        return any(sent) or any(brought)

    async def take_over(self) -> None:
        """Let what dead workers were sending be sent again."""
        await self._reconciler._send_again()  # noqa: SLF001 - the kit's own kind of it

    async def die(self) -> None:
        """The other side sees what it sees of a killed process: connections that end."""
        for dispatcher in self._dispatchers.values():
            sending = list(dispatcher._sending)  # noqa: SLF001 - a death asks nobody
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)
        for opened in self._opened:
            await opened.close(self._lease)

    async def _send(self, dispatcher: Dispatcher, patience: float) -> bool:
        """One round of a dispatcher, from the claim to what is noted of it."""
        await dispatcher.tick()
        sending = list(dispatcher._sending)  # noqa: SLF001 - the kit's own kind of it
        if not sending:
            return False
        _, left = await asyncio.wait(sending, timeout=patience)
        if left:
            raise HarnessError(f"{dispatcher.transport.name} has been sending for {patience:g} s: give it a shorter "
                               "timeout, or use a Scripted one")
        await dispatcher._note()  # noqa: SLF001 - the kit's own kind of it
        return True


class Still:
    """In place of a service that a drain does not need: it is over before a lease could run out."""

    statements = 0

    def start(self, after: float | None = 0.0) -> None:
        """Stay still."""

    async def stop(self) -> None:
        """Nothing to stop."""

    def report(self, reaped: object, freed: object) -> None:
        """Nobody waits for a notice."""


class Unlistening:
    """A notifier that does not listen to other processes: a drain asks the database itself."""

    def __init__(self, notifier: Notifier) -> None:
        self._notifier = notifier

    async def listen(self) -> None:
        """Hear this process only."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._notifier, name)


class SteppedWorker(Worker):
    """A real worker without loops of its own: the same claims, executor and commits, one after the other."""

    def _build(self, *args: Any, **kwargs: Any) -> None:
        self._lanes = OpenLanes(self._settings.queues)
        self._notifier = Unlistening(self._notifier)  # type: ignore[assignment]  # all else is the same
        self._receptions = Receptions()  # nobody's: what is woken waits until it is claimed
        super()._build(*args, **kwargs)
        self.taken: list[Claim] = []  # claimed, and not yet told to be over
        self._intake.take = self._take_noting(self._intake.take)  # type: ignore[assignment, method-assign]
        self._intake.claim_at_once = self._claim_noting(self._intake.claim_at_once)  # type: ignore[method-assign]
        self._asking.__class__ = LedAsking
        self._claimer.__class__ = LedClaimer
        self._timers.__class__ = LedTimers
        self._sharer = Still()  # type: ignore[assignment]  # its claims find rows wherever they are
        self._heartbeat = Still()  # type: ignore[assignment]  # as far as a worker uses it
        self._reaper = Still()  # type: ignore[assignment]
        self._pruner = Still()  # type: ignore[assignment]

    def _take_noting(self, take: Take) -> Take:
        def noting(lane: Lane, claims: Sequence[Claim], begun: Begun | None = None) -> None:
            if begun is None:  # else it was noted with its claim
                self.taken += claims
            take(lane, claims, begun)

        return noting

    def _claim_noting(self, claim_at_once: ClaimAtOnce) -> ClaimAtOnce:
        async def noting(*args: Any) -> Claimed:
            claimed = await claim_at_once(*args)
            if claimed.begun is not None:
                self.taken += claimed.claims
            return claimed

        return noting

    async def bury(self, dead: Sequence[int]) -> None:
        """Take over what dead workers of this drain had."""
        if dead:
            await self._lease.bury(dead, self._settings.max_crashes)
            await self._led_asking.take_over()

    async def look_at_clock(self) -> None:
        """Let in what has come due."""
        await self._timers.tick()

    async def ask_world(self, admit: Admit, patience: float) -> bool:
        """Send questions, and bring in what a script replies to them; False if there was nothing to do."""
        return await self._led_asking.go_round(admit, patience)

    @property
    def _led_asking(self) -> LedAsking:
        assert isinstance(self._asking, LedAsking)  # noqa: S101 - made so above
        return self._asking

    async def claim(self, queue: str, most: int) -> None:
        """Claim from this queue, and begin what was claimed."""
        lanes = self._lanes
        assert isinstance(lanes, OpenLanes)  # noqa: S101 - made so above
        lanes.rest()
        lane = lanes[queue]
        lane.slots = lane.running + most
        lane.ready = True
        await self._claimer.tick()
        await self._intake.all_begun()
        self._intake.raise_fault()

    async def finish(self, patience: float) -> list[Claim]:
        """Wait, not too long, until something that was begun is over, with all that hangs on it; returns that."""
        waits = self._hands.under_way()
        if waits and not self._ended():
            await asyncio.wait(waits, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        for flusher in (self._flusher, self._spawner):
            await flusher.offers.made()
        ended = self._ended()
        self.taken = [claim for claim in self.taken if claim not in ended]
        return ended

    def _ended(self) -> list[Claim]:
        held = {(hand.claim.id, hand.claim.fence) for hand in self._hands.all()}
        return [claim for claim in self.taken if (claim.id, claim.fence) not in held]

    async def read(self, claims: Sequence[Claim]) -> dict[int, Instance]:
        """The rows of these claims as they are now."""
        return {row.id: row for row in await instances.read(self._database, [claim.id for claim in claims])}

    async def die(self) -> None:
        """End without a word to the database: connections are cut first, so that nothing more can be committed."""
        self._database.cut()
        self._is_stopping = True
        self._lanes.close()
        tasks: list[asyncio.Task[None] | None] = [*self._intake._beginnings, *self._renewals]  # noqa: SLF001 - a death asks nobody
        for flusher in (self._flusher, self._spawner):
            flusher._stopping = True  # noqa: SLF001
            tasks += [*flusher._alone, flusher._task, flusher._sweeping]  # noqa: SLF001
        for hand in self._hands.all():
            hand.abandon("killed")
            tasks.append(hand.task)
        begun = [task for task in tasks if task is not None]
        for task in begun:
            task.cancel()
        await asyncio.gather(*begun, return_exceptions=True)
        await self._subscriptions.aclose()
        await self._led_asking.die()
        await self._executor.drain(0.0)
        if self._transactor is not None:
            await self._transactor.close()
