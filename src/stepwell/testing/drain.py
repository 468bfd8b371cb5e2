"""Runs claimable rows, one step at a time in claim order, until there are none, which the database says at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from stepwell._core.instance import Claim
from stepwell._core.interaction import Answer, Completion
from stepwell._store.connection.pool import WORKER, Database
from stepwell._store.testing.queries import KitQueries, Runnable
from stepwell.engine import Engine
from stepwell.errors import HarnessError
from stepwell.testing.drain_report import Ran, Tally
from stepwell.testing.faults import Fault, Watch
from stepwell.testing.manual_worker import ManualWorker

LEASE = timedelta(days=1)  # without a heartbeat
MOST_FRUITLESS = 400
PAUSE = 0.005
SHORT = {"drain_timeout": timedelta(seconds=0.2)}  # there is nothing to wait for, unless the drain gave up

T = TypeVar("T")

Look = Callable[[str, Claim | None], bool]
"""Whether the worker dies at this point, with this claim."""


class DrainOptions(NamedTuple):
    """What a test asks of one drain."""

    queues: Sequence[str] | None  # None: all
    max_steps: int
    slots: int  # steps that run at once
    patience: float  # seconds, with one step
    faults: Sequence[Fault]


class Drain:
    """One drain: its workers, each until it dies, and what they did."""

    def __init__(
        self,
        engine: Engine,
        kit_queries: KitQueries,
        connections: WorkerConnections,
        options: DrainOptions,
        *,
        look: Look,
        note: Callable[[Ran], None],
    ) -> None:
        self.tally = Tally()
        self._engine = engine
        self._kit_queries = kit_queries
        self._connections = connections
        self._options = options
        self._look = look
        self._note = note
        self._dead: list[int] = []
        self._worker_run: _WorkerRun | None = None
        self._last_end = 0.0

    async def run(self, skip_ahead: Callable[[datetime], Awaitable[None]] | None) -> Tally:
        """Drain; with `skip_ahead`, move the clock to the next due time until nothing is due."""
        try:
            while await self._turn() or (skip_ahead is not None and await self._skip(skip_ahead)):
                pass
        finally:
            if self._worker_run is not None:
                await self._worker_run.end()
        self._check_faults()
        return self.tally

    async def _turn(self) -> bool:
        """Run the next steps; False if there are none."""
        worker_run = await self._current_run()
        try:
            return await worker_run.survive(self._step(worker_run))
        except _Death:
            self._worker_run = None
            self._dead.append(await worker_run.die(self._kit_queries))
            self.tally.crashes += 1
            return True

    async def _current_run(self) -> _WorkerRun:
        if self._worker_run is None:
            worker_run = self._worker_run = _WorkerRun(self._engine, self._connections, self._options.slots, self._sees)
            await worker_run.survive(worker_run.begin(self._dead))
            await self._check_alone(worker_run)
            self._last_end = asyncio.get_running_loop().time()
        return self._worker_run

    async def _check_alone(self, worker_run: _WorkerRun) -> None:
        others = await self._kit_queries.alive([worker_run.worker_id, *self._dead])
        if others:
            listed = ", ".join(f"worker {id_} (pid {pid})" for id_, pid in others)
            raise HarnessError(
                f"drain while {listed} runs on the same database: leave the worker's block before you drain, "
                "or wait for its results instead of draining"
            )

    def _sees(self, point: str, _: dict[str, Any]) -> bool:
        claims = self._worker_run.worker.taken if self._worker_run is not None and self._worker_run.has_worker else []
        claim = claims[0] if claims else None
        struck = [fault.strikes(point, claim) for fault in self._options.faults]
        return self._look(point, claim) or any(struck)

    async def _step(self, worker_run: _WorkerRun) -> bool:
        worker = worker_run.worker
        await worker.look_at_clock()
        found = await self._kit_queries.next_runnable(self._options.queues)
        if found is not None and len(worker.taken) < self._options.slots:
            if self.tally.total >= self._options.max_steps:
                raise HarnessError(self._runaway(found))
            await self._claim(worker, found)
        if worker.taken:
            await self._collect(worker)
            return True
        return found is not None or await worker.exchange_interactions(self._admit, self._options.patience)

    async def _admit(self, completion: Answer) -> Completion:
        return await self._engine._operations.completing.complete(completion)  # noqa: SLF001 - like a worker's receiver

    async def _claim(self, worker: ManualWorker, found: Runnable) -> None:
        """Claim; a row that a transaction locks is tried again for a while."""
        before = len(worker.taken)
        for _ in range(MOST_FRUITLESS):
            await worker.claim(found.queue, self._options.slots - before)
            again = None if len(worker.taken) > before else await self._kit_queries.next_runnable(self._options.queues)
            if again is None or again.id != found.id:
                return
            await asyncio.sleep(PAUSE)
        raise HarnessError(f"{found.machine}.{found.step} #{found.id} may run and cannot be claimed: does a "
                           "transaction of the test lock its row? Commit it before you drain")

    async def _collect(self, worker: ManualWorker) -> None:
        """Wait for steps to end; only for a moment if there are free slots: the steps may start others."""
        is_full = len(worker.taken) >= self._options.slots
        ended = await worker.finish(self._options.patience if is_full else PAUSE)
        rows = await worker.read(ended)
        for claim in ended:
            if claim.id in rows:
                ran = Ran.of(claim, rows[claim.id])
                self.tally.note(ran, rows[claim.id])
                self._note(ran)
        now = asyncio.get_running_loop().time()
        if ended:
            self._last_end = now
        elif now - self._last_end > self._options.patience:
            listed = ", ".join(claim.label for claim in worker.taken)
            raise HarnessError(
                f"{listed} has not returned for {self._options.patience:g} s: if it waits for something that another "
                "step does, let several run at once: drain(concurrency=10); else give drain a longer timeout="
            )

    async def _skip(self, skip_ahead: Callable[[datetime], Awaitable[None]]) -> bool:
        sending = [name for name, transport in self._engine._transports.items() if transport.sends]  # noqa: SLF001 - of the kit
        due = await self._kit_queries.next_due(self._options.queues, sending)
        if due is not None:
            await skip_ahead(due)
        return due is not None

    def _runaway(self, found: Runnable) -> str:
        last = "\n".join(f"  #{ran.id} {ran}" for ran in self.tally.last)
        return (
            f"drain did not end within max_steps={self._options.max_steps} steps: "
            f"{found.machine}.{found.step} #{found.id} would run next; "
            f"does the machine loop forever?\nThe last steps were:\n{last}\nIn all, {self.tally}"
        )

    def _check_faults(self) -> None:
        for fault in self._options.faults:
            if fault.is_sure and not fault.is_spent:
                times = f"reached it {fault.reached} times" if fault.reached else "never reached it"
                raise HarnessError(f"the crash at {fault} did not happen: the drain {times}\n{self.tally}")


class _Death(Exception):
    """The worker of a drain has died."""


class WorkerConnections:
    """The connections of a harness's workers: kept from drain to drain, opened anew after a death."""

    def __init__(self, url: str, schema: str) -> None:
        self._url = url
        self._schema = schema
        self._database: Database | None = None

    async def open(self) -> Database:
        if self._database is None:
            database = Database(self._url, session=WORKER, schema=self._schema)
            await database.open()
            self._database = database
        return self._database

    def leave(self) -> None:
        """Forget connections that were cut."""
        self._database = None

    async def close(self) -> None:
        if self._database is not None:
            await self._database.close()


class _WorkerRun:
    """One worker of a drain, from its start to its end or death."""

    has_worker = False

    def __init__(
        self, engine: Engine, connections: WorkerConnections, slots: int, look: Callable[[str, dict[str, Any]], bool]
    ) -> None:
        self._engine = engine
        self._connections = connections
        self._slots = slots
        self._watch = Watch(look)
        self._stack = AsyncExitStack()
        self.worker: ManualWorker
        self.worker_id = 0

    async def begin(self, dead: Sequence[int]) -> None:
        settings = self._engine.settings.with_changes({
            "lease": LEASE, "prefetch": 0, "min_demand": 1, "run_ahead": 0, "queues": {"default": self._slots}, **SHORT,
        })  # fmt: skip
        database = await self._connections.open()
        worker_block = self._engine._hired(ManualWorker, settings, database)  # noqa: SLF001 - a worker of the kit
        self.worker = await self._stack.enter_async_context(worker_block)
        await self.worker.start()
        self.worker_id = self.worker.id or 0
        self.has_worker = True
        await self.worker.expire(dead)

    async def survive(self, work: Coroutine[Any, Any, T]) -> T:
        """Await the work; raises _Death if a fault strikes before it ends."""
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

    async def die(self, kit_queries: KitQueries) -> int:
        """End like a killed process; returns the dead worker's id, once the server has noticed."""
        self._connections.leave()
        with _quiet():
            await self.worker.die()
            await kit_queries.cut_workers()
            await self._stack.aclose()
        return self.worker_id

    async def end(self) -> None:
        if self.has_worker:
            await self.worker.stop()
        await self._stack.aclose()


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the log of dying workers."""
    log = logging.getLogger("stepwell")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
