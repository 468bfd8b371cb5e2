"""One run of a scenario beside a process that stops between two statements, and what has to hold then."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import monotonic
from typing import Any, ClassVar

from stepwell._store.connection.sql_files import application
from stepwell.config import SCHEMA
from stepwell.context import Context
from stepwell.machine import Machine, step
from stepwell.outcomes import Done
from stepwell.testing.crashes.explore import Scenario, _standing
from stepwell.testing.crashes.snapshot import EndState, end_state_of
from stepwell.testing.harness import Harness
from stepwell.testing.stops.child_process import Reference
from stepwell.testing.stops.processes import How, Process, Processes
from stepwell.testing.stops.report import Gap
from stepwell.testing.stops.slowness import Computer

PATIENT = timedelta(seconds=60)  # the lease of the test's own engine, which waits for locks of the stopped one
LONGEST_HELD = timedelta(seconds=10)  # locks of a process that does not continue
WORK = 3.0  # seconds for everything else on a free machine; multiplied by its slowness
LOOK_EVERY = 0.05
OF_A_STEP = re.compile(r"stepwell step \d+")
MOST_SAID = 500

# The session of a process that stands between parsing and running a statement is active.
_HELD = """
select pid, query, application_name, state = 'active' as is_stalled from pg_stat_activity
where datname = current_database() and state_change < $1
  and (state like 'idle in transaction%' or state = 'active' and wait_event_type = 'Client')"""


class StopProbe(Machine, initial="end"):
    """Shows that a queue is claimed from."""

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done()


@dataclass(frozen=True, slots=True)
class Play:
    """What is run: a scenario beside a worker that stops, or after a client that stops in its act."""

    scenario: Scenario
    machines: list[Any]
    options: dict[str, Any]  # of engines: settings, limits, resources
    look: Scenario | None = None
    prepare: Callable[[Harness, Processes], Awaitable[None]] | None = None
    act: Reference | None = None  # what the client does; None: the process that stops is a worker

    @property
    def lease(self) -> float:
        return float(self.options["lease"].total_seconds())

    @property
    def held(self) -> float:
        """Seconds after which locks of a stopped process are gone, except for those of authors' code."""
        return min(self.lease, LONGEST_HELD.total_seconds())

    @property
    def held_by_stalled_clients(self) -> float:
        """The same, for a client's session within a statement: no other process knows the client's lease."""
        return LONGEST_HELD.total_seconds() + float(self.options["reap"].total_seconds())

    @property
    def held_by_authors(self) -> float:
        """The same, for a step: the worker that returns its row ends its session."""
        return self.lease + float(self.options["reap"].total_seconds())

    @property
    def queues(self) -> list[str]:
        return list(self.options.get("queues", {"default": 1}))


@dataclass(slots=True)
class Played:
    """The result of one run."""

    passed: list[Gap] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)
    end_state: EndState = field(default_factory=lambda: EndState({}, {}, []))
    locks_gone: float | None = None
    is_reached: bool = False
    took: float = 0.0


class Runs:
    """All runs of one play."""

    own: ClassVar = [StopProbe]

    def __init__(self, play: Play, processes: Processes, timeout: float) -> None:
        self._play = play
        self._processes = processes
        self._timeout = timeout
        self._plain = 0.0  # seconds that the scenario takes without a stop

    async def run(self, gap: Gap | None = None, how: How = "halt") -> Played:
        """Run once, in a fresh database."""
        played = Played()
        play = self._play
        async with Harness([*play.machines, *self.own], **{**play.options, "lease": PATIENT}) as h:
            stage = _Stage(h, play, self._processes, played, _Patience(self._processes.computer, self._plain))
            try:
                async with asyncio.timeout(self._timeout):
                    returned = await (stage.with_worker(gap, how) if play.act is None else stage.with_client(gap, how))
                    looked = None if play.look is None else await play.look(h)
                    end_state = await end_state_of(h, {"returned": returned, "look": looked})
                    played.end_state = _without_probes(end_state)
            except TimeoutError:
                played.troubles.append(f"the run did not end within {self._timeout:g} s; {await _left(h)}")
            except Exception as error:  # noqa: BLE001 - an error after a stop is reported
                played.troubles.append(f"{type(error).__name__}: {error}")
            finally:
                await stage.clear()
            if gap is None:
                self._plain = max(self._plain, played.took)
        return played


@dataclass(frozen=True, slots=True)
class _Patience:
    """How long something may take: the time of the settings, and time for work, which is longer on a busy machine."""

    computer: Computer
    plain: float  # seconds that the scenario takes without a stop

    def for_locks(self, settings: float, since: float) -> float:
        return settings + WORK * self.computer.slowness(since)

    def for_scenario(self, lease: float, since: float) -> float:
        return 2 * lease + (self.plain + WORK) * self.computer.slowness(since)


class _Stage:
    """The processes of one run."""

    def __init__(self, h: Harness, play: Play, processes: Processes, played: Played, patience: _Patience) -> None:
        self._h = h
        self._play = play
        self._processes = processes
        self._played = played
        self._patience = patience
        self._started: list[Process] = []

    async def with_worker(self, gap: Gap | None, how: How) -> Any:
        """The scenario, while the worker that runs it stops and another one takes over."""
        await self._prepare()
        began = monotonic()
        victim = await self._start(gap=gap, how=how)
        playing = asyncio.ensure_future(self._play.scenario(self._h))
        try:
            await _first(playing, victim.stopped.wait(), victim.ended.wait())
            if not victim.stopped.is_set() and not victim.ended.is_set():
                await playing
                self._played.took = monotonic() - began
                await self._end(victim)  # it may reach its gap while it ends
            if victim.stopped.is_set():
                other = await self._after_stop(victim)
                await self._within(playing, "the scenario has not ended")
                if how == "halt":
                    await self._resume_halted(victim, other)
            self._played.passed = victim.passed
            return await playing
        finally:
            playing.cancel()

    async def with_client(self, gap: Gap | None, how: How) -> Any:
        """The client's calls, in which it stops, beside a worker; then the scenario."""
        other = await self._start()
        await other.ready.wait()
        await self._prepare()
        began = monotonic()
        act = self._play.act
        victim = await self._start(gap=gap, how=how, act=act)
        await _first(victim.stopped.wait(), victim.ended.wait())
        if victim.stopped.is_set():
            await self._look_at_locks(victim)
            await self._probe("while it is stopped")
            if how == "halt":
                victim.resume()
            else:
                victim = await self._start(act=act)
        await self._within(victim.ended.wait(), "the client has not ended")
        if victim.code:
            self._trouble(f"the client ended with {victim.code}")
        self._played.passed = victim.passed
        playing = asyncio.ensure_future(self._play.scenario(self._h))
        try:
            await self._within(playing, "the scenario has not ended")
            self._played.took = monotonic() - began
            return await playing
        finally:
            playing.cancel()

    async def clear(self) -> None:
        for process in self._started:
            await process.kill()
        if self._played.troubles:
            words = [(process.pid, process.last_words()) for process in self._started]
            self._played.troubles += [f"process {pid} said: {said}" for pid, said in words if said]

    async def _prepare(self) -> None:
        if self._play.prepare is not None:
            await self._play.prepare(self._h, self._processes)

    async def _start(self, **options: Any) -> Process:
        process = await self._processes.start(self._h.url, **options)
        self._started.append(process)
        return process

    async def _after_stop(self, victim: Process) -> Process:
        """Start another worker, and check that it works; returns it."""
        other = await self._start()
        await self._look_at_locks(victim)
        await self._within(other.ready.wait(), "another worker cannot start")
        await self._probe("while it is stopped")
        return other

    async def _look_at_locks(self, victim: Process) -> None:
        """Wait until the stopped process has left no transaction open."""
        self._played.is_reached = True
        began = monotonic()
        [[stopped_at]] = await self._h.sql("select clock_timestamp()")
        while held := await self._held(stopped_at):
            gone = monotonic() - began
            late = [row for row in held if gone > self._patience.for_locks(self._may_hold(row), began)]
            if late:
                said = "; ".join(f"{row['pid']}: {row['query'].splitlines()[0]}" for row in late)
                self._trouble(f"its locks are still held {gone:.1f} s later ({said})")
                return
            await asyncio.sleep(LOOK_EVERY)
        self._played.locks_gone = monotonic() - began

    def _may_hold(self, row: Any) -> float:
        """Seconds for which that session may hold its locks."""
        if OF_A_STEP.fullmatch(row["application_name"]):
            return self._play.held_by_authors
        if row["is_stalled"] and row["application_name"] == application(SCHEMA):
            return self._play.held_by_stalled_clients
        return self._play.held

    async def _held(self, before: datetime) -> list[Any]:
        return await self._h.sql(_HELD, before)

    async def _resume_halted(self, victim: Process, other: Process) -> None:
        """Continue the halted worker, without the other one: it has to work as before."""
        was_ready = victim.ready.is_set()  # otherwise it may end: its start has failed, and its parent knows
        victim.resume()
        if self._played.troubles:
            return
        await self._end(other)
        await self._within(victim.ready.wait(), "the halted worker does not start")
        if not victim.ended.is_set():
            await self._probe("after it has continued")
        await self._end(victim)
        if victim.code and was_ready:
            self._trouble(f"the halted worker ended with {victim.code}")

    async def _probe(self, when: str) -> None:
        """Check that every queue is claimed from."""
        handles = [(queue, await self._h.engine.start(StopProbe, queue=queue)) for queue in self._play.queues]
        for queue, handle in handles:
            await self._within(handle.wait(), f"nothing is claimed from queue {queue!r} {when}")

    async def _end(self, process: Process) -> None:
        ending = asyncio.create_task(process.end())
        await _first(process.stopped.wait(), asyncio.shield(ending))

    async def _within(self, waited: Awaitable[Any], trouble: str) -> None:
        """Wait, at most two leases and the usual time of this machine."""
        task, began = asyncio.ensure_future(waited), monotonic()
        while not task.done():
            left = began + self._patience.for_scenario(self._play.lease, began) - monotonic()
            if left <= 0:
                self._trouble(f"{trouble} {monotonic() - began:.1f} s later; {await _left(self._h)}")
                return
            await asyncio.wait([task], timeout=left)
        await task

    def _trouble(self, what: str) -> None:
        self._played.troubles.append(what)


async def _first(*waited: Awaitable[Any]) -> None:
    """Wait for one of them."""
    tasks = [asyncio.ensure_future(one) for one in waited]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task, one in zip(tasks, waited, strict=True):
            if task is not one:
                task.cancel()


def _without_probes(end_state: EndState) -> EndState:
    kept = {name: leaves for name, leaves in end_state.instances.items() if not name.startswith(StopProbe.__name__)}
    return EndState(end_state.returned, kept, end_state.effects)


async def _left(h: Harness) -> str:
    """What has not ended, in a few lines."""
    return (await _standing(h)).removeprefix("; ")[:MOST_SAID]
