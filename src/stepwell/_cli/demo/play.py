"""The play: an order begins, its worker is killed in the middle of a step, another worker goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stepwell import Handle, Instance
from stepwell._cli.demo import effects
from stepwell._cli.demo.effects import Effect
from stepwell._cli.demo.process import WorkerProcess
from stepwell._cli.demo.telling import Run, Teller
from stepwell._cli.output import pretty, record
from stepwell.engine import Engine

LONGEST = 50.0  # seconds, for the whole of it
LOOK = 0.02
INTO_THE_STEP = 0.5
EXPECTED = [("reserve", 0, "committed"), ("charge", 0, "killed"), ("charge", 1, "committed"), ("ship", 0, "committed")]


class DemoFailed(Exception):
    """The play did not go as it must; `log` has what the workers wrote."""

    def __init__(self, problem: str, log: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.log = log


@dataclass(frozen=True)
class Ending:
    """The facts, for `--json` and for the tests."""

    instance: Instance
    runs: list[Run]
    killed_pid: int | None
    seconds: float

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": True, "seconds": self.seconds, "killed": {"pid": self.killed_pid, "step": "charge"},
            "runs": [asdict(run) for run in self.runs], "instance": record(self.instance),
        }  # fmt: skip


class Play:
    """The acts, in order. Everything told was seen: in the effects, in the row, or in a process."""

    def __init__(self, engine: Engine, folder: Path, teller: Teller) -> None:
        self.workers: list[WorkerProcess] = []
        self._engine = engine
        self._folder = folder
        self._teller = teller
        self._path = folder / "effects"
        self._told: list[Effect] = []
        self._killed: int | None = None
        self._order: Handle

    async def perform(self) -> Ending:
        try:
            async with asyncio.timeout(LONGEST):
                await self._engine.migrate()
                self._teller.say("Postgres is up, the schema is migrated")
                async with self._engine:
                    return await self._acts()
        except TimeoutError:
            raise self._failure(f"it was not over after {LONGEST:g} s") from None

    async def _acts(self) -> Ending:
        async with self._worker("A") as first:
            await self._begin(first)
            await self._kill(first)
        async with self._worker("B") as second:
            return await self._finish(second)

    async def _begin(self, worker: WorkerProcess) -> None:
        self._order = await self._engine.start("Order", {"item": "teapot"})
        self._teller.say(f"Order #{self._order.id} is started: reserve, then charge, then ship")
        await self._follow(worker, lambda effect: effect.step == "charge")

    async def _kill(self, worker: WorkerProcess) -> None:
        await asyncio.sleep(INTO_THE_STEP)  # visibly into the step
        await worker.kill()
        self._killed = worker.pid
        self._teller.say(f"kill -9 {worker.pid}: worker A dies in the middle of charge", style="red")
        row = await self._order.get()
        self._teller.say(f"The row still has: step {row.step}, {_known(row)}")

    async def _finish(self, worker: WorkerProcess) -> Ending:
        await self._follow(worker, lambda effect: (effect.step, effect.event) == ("ship", "ends"))
        instance = await self._order.wait(timeout=LONGEST)
        self._teller.say(f"ship is committed: {instance.status}, {pretty(instance.result)}", style="green")
        runs = self._runs()
        if [(run.step, run.attempt, run.fate) for run in runs] != EXPECTED:
            raise self._failure(f"other runs than expected: {[asdict(run) for run in runs]}")
        return Ending(instance, runs, self._killed, self._teller.since())

    async def _follow(self, worker: WorkerProcess, is_last: Callable[[Effect], bool]) -> None:
        """Tell effects as they come, up to the one meant."""
        while True:
            for effect in effects.read(self._path)[len(self._told) :]:
                await self._tell(effect)
                if is_last(effect):
                    return
            if worker.has_ended:
                raise self._failure(f"worker {worker.name} ended by itself")
            await asyncio.sleep(LOOK)

    async def _tell(self, effect: Effect) -> None:
        if effect.event == "begins" and self._told and self._told[-1].event == "ends":
            # The next step begins, so that the one before it is committed.
            known = _known(await self._order.get())
            self._teller.say(f"{self._told[-1].step} is committed: {known}", at=effect.at, style="green")
        again = f" again (attempt {effect.attempt})" if effect.attempt and effect.event == "begins" else ""
        self._teller.say(f"{effect.step} {effect.event}{again}", at=effect.at, worker=self._name(effect.pid))
        self._told.append(effect)

    def _name(self, pid: int) -> str:
        return next((worker.name for worker in self.workers if worker.pid == pid), "?")

    @asynccontextmanager
    async def _worker(self, name: str) -> AsyncIterator[WorkerProcess]:
        worker = WorkerProcess(name, self._folder)
        self.workers.append(worker)
        try:
            if not await worker.start():
                raise self._failure(f"worker {name} did not get ready")
            self._teller.say(f"Worker {name} is ready, process {worker.pid}", at=time.time())
            yield worker
            await worker.end()
        finally:
            await worker.kill()

    def _failure(self, problem: str) -> DemoFailed:
        return DemoFailed(problem, "\n".join(f"log of worker {w.name}:\n{w.log}" for w in self.workers))

    def _runs(self) -> list[Run]:
        """Each begin with its end; a step is committed if it ended and another one followed, or none had to."""
        ends = {(effect.pid, effect.step, effect.attempt): effect.at for effect in self._told if effect.event == "ends"}
        runs = []
        for effect in self._told:
            if effect.event == "begins":
                ended = ends.get((effect.pid, effect.step, effect.attempt))
                runs.append(Run(
                    effect.step, effect.attempt, self._name(effect.pid), effect.pid, self._teller.since(effect.at),
                    None if ended is None else self._teller.since(ended),
                    "committed" if ended is not None else "killed" if effect.pid == self._killed else "lost",
                ))  # fmt: skip
        return runs


def _known(instance: Instance) -> str:
    """The state, less what is not known yet."""
    return pretty({name: value for name, value in instance.state.items() if value is not None})
