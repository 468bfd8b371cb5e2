"""The scenario: a worker is killed in a step, the next one while the order is parked; a third one ships."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stepwell import Handle, Instance, Status
from stepwell._cli.demo import effects
from stepwell._cli.demo.effects import Effect
from stepwell._cli.demo.output import Reporter, Run
from stepwell._cli.demo.processes import Command, WorkerProcess
from stepwell._cli.output import pretty, record, to_json
from stepwell.engine import Engine

LONGEST = 50.0  # seconds, for the whole scenario
LOOK = 0.02
INTO_THE_STEP = 0.5
KEY = "order:42"
PAYMENT = ("signal", "--key", KEY, "payment_confirmed", '{"amount": 100}', "--dedup-key", "evt-7")
EXPECTED = [("reserve", 0, "A", "killed"), ("reserve", 1, "B", "committed"), ("ship", 0, "C", "committed")]


class DemoFailed(Exception):
    """The scenario did not go as expected; `log` has what the workers wrote."""

    def __init__(self, problem: str, log: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.log = log


@dataclass(frozen=True, slots=True)
class Kill:
    """A worker, and the row when kill -9 ended it."""

    worker: str
    pid: int | None
    status: Status
    step: str


@dataclass(frozen=True)
class Ending:
    """The facts, for `--json` and for the tests."""

    instance: Instance
    runs: list[Run]
    kills: list[Kill]
    senders: list[int]
    seconds: float

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": True, "seconds": self.seconds, "kills": [asdict(kill) for kill in self.kills],
            "signals": [{"pid": pid, "command": str(Command(*PAYMENT))} for pid in self.senders],
            "runs": [asdict(run) for run in self.runs], "instance": record(self.instance),
        }  # fmt: skip


class Scenario:
    """The scenario's steps, in order. Everything it reports was observed: in the effects, in the row, or in a
    process.
    """

    def __init__(self, engine: Engine, folder: Path, reporter: Reporter) -> None:
        self.workers: list[WorkerProcess] = []
        self._engine = engine
        self._folder = folder
        self._reporter = reporter
        self._path = folder / "effects"
        self._effects: list[Effect] = []
        self._kills: list[Kill] = []
        self._senders: list[int] = []
        self._order: Handle

    async def perform(self) -> Ending:
        try:
            async with asyncio.timeout(LONGEST):
                await self._engine.migrate()
                self._reporter.event("Postgres is up, the schema is migrated")
                async with self._engine:
                    return await self._acts()
        except TimeoutError:
            raise self._failure(f"it had not ended after {LONGEST:g} s") from None

    async def _acts(self) -> Ending:
        async with self._worker("A") as first:
            await self._begin(first)
        async with self._worker("B") as second:
            await self._park(second)
        await self._pay()
        async with self._worker("C") as third:
            return await self._finish(third)

    async def _begin(self, worker: WorkerProcess) -> None:
        self._order = await self._engine.start("Checkout", {"item": "teapot"}, key=KEY)
        self._reporter.event(f"Checkout #{self._order.id}, key {KEY}, is started: reserve, wait for the payment, ship")
        await self._follow(worker, lambda effect: effect.step == "reserve")
        await asyncio.sleep(INTO_THE_STEP)  # well into the step
        row = await self._kill(worker, "in the middle of reserve")
        self._reporter.event(f"The row still has: step {row.step}, {_present_fields(row)}")

    async def _park(self, worker: WorkerProcess) -> None:
        await self._follow(worker, lambda effect: effect.event == "ends")
        row = await self._order.wait(timeout=LONGEST, until="settled")
        self._reporter.event(f"reserve is committed: {_present_fields(row)}", style="green")
        self._reporter.event(f"The order is parked, it waits for {row.waiting_for}, an hour at most", style="green")
        row = await self._kill(worker, "while the order is parked")
        self._reporter.event(f"No process runs now. The row has: {row.status}, then {row.step}")

    async def _pay(self) -> None:
        await self._send("The payment arrives, from a process of its own")
        row = await self._order.get()
        self._reporter.event(f"The row has: {row.status} at {row.step}; the payment is in its inbox", style="green")
        await self._send("The provider sends the same event again")

    async def _send(self, what: str) -> None:
        command = Command(*PAYMENT)
        self._reporter.event(f"{what}:")
        self._reporter.detail(f"$ {command}")
        if not await command.run(self._folder):
            raise self._failure(f"the signal could not be sent: {command.output.strip()}")
        self._senders.append(command.pid)
        self._reporter.detail(command.output.strip())

    async def _finish(self, worker: WorkerProcess) -> Ending:
        await self._follow(worker, lambda effect: (effect.step, effect.event) == ("ship", "ends"))
        instance = await self._order.wait(timeout=LONGEST)
        if instance.status is not Status.DONE or len(instance.result["payments"]) != 1:
            raise self._failure(f"unexpected end: {to_json(record(instance))}")
        self._reporter.event(f"ship is committed: {instance.status}, with one payment", style="green")
        self._reporter.detail(pretty(instance.result))
        runs = self._runs()
        if [(run.step, run.attempt, run.worker, run.fate) for run in runs] != EXPECTED:
            raise self._failure(f"unexpected runs: {[asdict(run) for run in runs]}")
        return Ending(instance, runs, self._kills, self._senders, self._reporter.since())

    async def _kill(self, worker: WorkerProcess, when: str) -> Instance:
        """Send kill -9; returns the row as it is after that."""
        await worker.kill()
        self._reporter.event(f"kill -9 {worker.pid}: worker {worker.name} dies {when}", style="red")
        row = await self._order.get()
        self._kills.append(Kill(worker.name, worker.pid, row.status, row.step))
        return row

    async def _follow(self, worker: WorkerProcess, is_last: Callable[[Effect], bool]) -> None:
        """Report effects as they come, up to the one that `is_last` accepts."""
        while True:
            for effect in effects.read(self._path)[len(self._effects) :]:
                self._report_effect(effect)
                if is_last(effect):
                    return
            if worker.has_ended:
                raise self._failure(f"worker {worker.name} exited unexpectedly")
            await asyncio.sleep(LOOK)

    def _report_effect(self, effect: Effect) -> None:
        again = f" again (attempt {effect.attempt})" if effect.attempt and effect.event == "begins" else ""
        self._reporter.event(f"{effect.step} {effect.event}{again}", at=effect.at, worker=self._name(effect.pid))
        self._effects.append(effect)

    def _name(self, pid: int) -> str:
        return next((worker.name for worker in self.workers if worker.pid == pid), "?")

    @asynccontextmanager
    async def _worker(self, name: str) -> AsyncIterator[WorkerProcess]:
        worker = WorkerProcess(name, self._folder)
        self.workers.append(worker)
        try:
            if not await worker.start():
                raise self._failure(f"worker {name} did not become ready")
            self._reporter.event(f"Worker {name} is ready, process {worker.pid}", at=time.time())
            yield worker
            await worker.end()
        finally:
            await worker.kill()

    def _failure(self, problem: str) -> DemoFailed:
        return DemoFailed(problem, "\n".join(f"log of worker {w.name}:\n{w.log}" for w in self.workers))

    def _runs(self) -> list[Run]:
        """Each start with its end. A step that ended was committed: the row continued from there, as the scenario has
        seen.
        """
        ends = {(done.pid, done.step, done.attempt): done.at for done in self._effects if done.event == "ends"}
        killed = {kill.pid for kill in self._kills}
        runs = []
        for effect in self._effects:
            if effect.event == "begins":
                ended = ends.get((effect.pid, effect.step, effect.attempt))
                runs.append(Run(
                    effect.step, effect.attempt, self._name(effect.pid), effect.pid, self._reporter.since(effect.at),
                    None if ended is None else self._reporter.since(ended),
                    "committed" if ended is not None else "killed" if effect.pid in killed else "lost",
                ))  # fmt: skip
        return runs


def _present_fields(instance: Instance) -> str:
    """The state, without the fields that are not set yet."""
    return pretty({name: value for name, value in instance.state.items() if value is not None})
