"""Runs what may run, one step at a time in claim order, until nothing may; known from the database, not by waiting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

from stepwell._core.interactions import Answer, Completion
from stepwell._core.records import Claim
from stepwell._store.database import WORKER, Database
from stepwell._store.desk import Desk, Runnable
from stepwell.engine import Engine
from stepwell.errors import HarnessError
from stepwell.testing.faults import Fault, Watch
from stepwell.testing.stepped import SteppedWorker
from stepwell.testing.tally import Ran, Tally

LEASE = timedelta(days=1)  # nobody beats it
MOST_FRUITLESS = 400
PAUSE = 0.005
SHORT = {"drain_timeout": timedelta(seconds=0.2)}  # nothing is left to wait for, unless the drain gave up

T = TypeVar("T")

Look = Callable[[str, Claim | None], bool]
"""Whether the worker dies at this point, with this claim in hand."""


class Drain:
    """One drain: its workers, one after the other's death, and what they did."""

    def __init__(
        self,
        engine: Engine,
        desk: Desk,
        workplace: Workplace,
        *,
        queues: Sequence[str] | None,
        max_steps: int,
        slots: int,
        patience: float,
        faults: Sequence[Fault],
        look: Look,
        note: Callable[[Ran], None],
    ) -> None:
        self.tally = Tally()
        self._engine = engine
        self._desk = desk
        self._workplace = workplace
        self._queues = None if queues is None else list(queues)
        self._max_steps = max_steps
        self._slots = slots
        self._patience = patience
        self._faults = faults
        self._look = look
        self._note = note
        self._dead: list[int] = []
        self._life: _Life | None = None
        self._last_end = 0.0

    async def run(self, skip_ahead: Callable[[datetime], Awaitable[None]] | None) -> Tally:
        """Drain; with `skip_ahead`, time moves on to whatever is due next until nothing is."""
        try:
            while await self._turn() or (skip_ahead is not None and await self._skip(skip_ahead)):
                pass
        finally:
            if self._life is not None:
                await self._life.end()
        self._check_faults()
        return self.tally

    async def _turn(self) -> bool:
        """Run the next steps; False if there are none."""
        life = await self._living()
        try:
            return await life.survive(self._step(life))
        except _Death:
            self._life = None
            self._dead.append(await life.die(self._desk))
            self.tally.crashes += 1
            return True

    async def _living(self) -> _Life:
        if self._life is None:
            life = self._life = _Life(self._engine, self._workplace, self._slots, self._sees)
            await life.survive(life.begin(self._dead))
            await self._check_alone(life)
            self._last_end = asyncio.get_running_loop().time()
        return self._life

    async def _check_alone(self, life: _Life) -> None:
        others = await self._desk.alive([life.worker_id, *self._dead])
        if others:
            listed = ", ".join(f"worker {id_} (pid {pid})" for id_, pid in others)
            raise HarnessError(
                f"drain while {listed} runs on the same database: leave the worker's block before you drain, "
                "or wait for its results instead of draining"
            )

    def _sees(self, point: str, _: dict[str, Any]) -> bool:
        claims = self._life.worker.taken if self._life is not None and self._life.has_worker else []
        claim = claims[0] if claims else None
        struck = [fault.strikes(point, claim) for fault in self._faults]
        return self._look(point, claim) or any(struck)

    async def _step(self, life: _Life) -> bool:
        worker = life.worker
        await worker.look_at_clock()
        found = await self._desk.next_runnable(self._queues)
        if found is not None and len(worker.taken) < self._slots:
            if self.tally.total >= self._max_steps:
                raise HarnessError(self._runaway(found))
            await self._claim(worker, found)
        if worker.taken:
            await self._collect(worker)
            return True
        return found is not None or await worker.ask_world(self._admit, self._patience)

    async def _admit(self, answer: Answer) -> Completion:
        return await self._engine._doors.completing.complete(answer)  # noqa: SLF001 - as a worker's receiver does

    async def _claim(self, worker: SteppedWorker, found: Runnable) -> None:
        """Claim; what is locked by somebody's transaction is tried again for a while."""
        before = len(worker.taken)
        for _ in range(MOST_FRUITLESS):
            await worker.claim(found.queue, self._slots - before)
            again = None if len(worker.taken) > before else await self._desk.next_runnable(self._queues)
            if again is None or again.id != found.id:
                return
            await asyncio.sleep(PAUSE)
        raise HarnessError(f"{found.machine}.{found.step} #{found.id} may run and can not be claimed: does a "
                           "transaction of the test's own hold its row? Commit it before you drain")

    async def _collect(self, worker: SteppedWorker) -> None:
        """Wait for steps to end; where there is room for more, only for a moment: they may start others."""
        is_full = len(worker.taken) >= self._slots
        ended = await worker.finish(self._patience if is_full else PAUSE)
        rows = await worker.read(ended)
        for claim in ended:
            if claim.id in rows:
                ran = Ran.of(claim, rows[claim.id])
                self.tally.note(ran, rows[claim.id])
                self._note(ran)
        now = asyncio.get_running_loop().time()
        if ended:
            self._last_end = now
        elif now - self._last_end > self._patience:
            listed = ", ".join(claim.label for claim in worker.taken)
            raise HarnessError(
                f"{listed} has not returned for {self._patience:g} s: if it waits for something that another step "
                "does, let several run at once: drain(concurrency=10); else give drain a longer timeout="
            )

    async def _skip(self, skip_ahead: Callable[[datetime], Awaitable[None]]) -> bool:
        sending = [name for name, transport in self._engine._transports.items() if transport.sends]  # noqa: SLF001 - the kit's
        due = await self._desk.next_due(self._queues, sending)
        if due is not None:
            await skip_ahead(due)
        return due is not None

    def _runaway(self, found: Runnable) -> str:
        last = "\n".join(f"  #{ran.id} {ran}" for ran in self.tally.last)
        return (
            f"drain did not end within max_steps={self._max_steps} steps: {found.machine}.{found.step} #{found.id} "
            f"would run next; a machine that goes round for ever?\nThe last steps were:\n{last}\nIn all, {self.tally}"
        )

    def _check_faults(self) -> None:
        for fault in self._faults:
            if fault.is_sure and not fault.is_spent:
                times = f"came by {fault.reached} times" if fault.reached else "never came by"
                raise HarnessError(f"the crash at {fault} did not happen: the drain {times}\n{self.tally}")


class _Death(Exception):
    """The worker of a drain has died."""


class Workplace:
    """The connections of a harness's workers: kept from drain to drain, made anew after a death."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._database: Database | None = None

    async def open(self) -> Database:
        if self._database is None:
            database = Database(self._url, session=WORKER)
            await database.open()
            self._database = database
        return self._database

    def leave(self) -> None:
        """Forget connections that were cut."""
        self._database = None

    async def close(self) -> None:
        if self._database is not None:
            await self._database.close()


class _Life:
    """One worker of a drain, from its start to its end or death."""

    has_worker = False

    def __init__(
        self, engine: Engine, workplace: Workplace, slots: int, look: Callable[[str, dict[str, Any]], bool]
    ) -> None:
        self._engine = engine
        self._workplace = workplace
        self._slots = slots
        self._watch = Watch(look)
        self._stack = AsyncExitStack()
        self.worker: SteppedWorker
        self.worker_id = 0

    async def begin(self, dead: Sequence[int]) -> None:
        settings = self._engine.settings.with_changes({
            "lease": LEASE, "prefetch": 0, "min_demand": 1, "run_ahead": 0, "queues": {"default": self._slots}, **SHORT,
        })  # fmt: skip
        database = await self._workplace.open()
        hired = self._engine._hired(SteppedWorker, settings, database)  # noqa: SLF001 - the kit's own kind of worker
        self.worker = await self._stack.enter_async_context(hired)
        await self.worker.start()
        self.worker_id = self.worker.id or 0
        self.has_worker = True
        await self.worker.bury(dead)

    async def survive(self, work: Coroutine[Any, Any, T]) -> T:
        """Do a piece of work under watch; raises _Death if a fault strikes in it."""
        with self._watch.armed():
            doing = asyncio.create_task(work)
            dying = asyncio.create_task(self._watch.died.wait())
            try:
                await asyncio.wait([doing, dying], return_when=asyncio.FIRST_COMPLETED)
                if self._watch.died.is_set():
                    raise _Death
                return await doing
            finally:
                doing.cancel()
                dying.cancel()
                await asyncio.gather(doing, dying, return_exceptions=True)

    async def die(self, desk: Desk) -> int:
        """As if by SIGKILL; returns who died, once the server has noticed."""
        self._workplace.leave()
        with _quiet():
            await self.worker.die()
            await desk.cut_workers()
            await self._stack.aclose()
        return self.worker_id

    async def end(self) -> None:
        if self.has_worker:
            await self.worker.stop()
        await self._stack.aclose()


@contextmanager
def _quiet() -> Iterator[None]:
    """Dying workers complain, and nobody wants to know."""
    log = logging.getLogger("stepwell")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
