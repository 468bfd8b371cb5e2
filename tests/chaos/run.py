"""One run: servers, proxies, workers and clients, the faults of the schedule, the calm, and the checks at the end."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from stepwell.testing.stops.slowness import Computer
from tests.chaos import invariants, limits
from tests.chaos.clock import Clock
from tests.chaos.faults import ClockMoved, Failover, Fault, Fill, NotNow, Site
from tests.chaos.findings import Findings
from tests.chaos.logs import CLIENTS as CLIENTS_LOG
from tests.chaos.logs import Logs, write_log
from tests.chaos.machines import CREATE, make_engine
from tests.chaos.provider import Provider
from tests.chaos.proxy import Proxies
from tests.chaos.recovery import Recovery, Watch
from tests.chaos.replicas import Layout, Replicas
from tests.chaos.report import Report
from tests.chaos.schedule import FAULTS, Strike, strikes
from tests.chaos.workers import DATABASE, LEASE, WIRE, Workers
from tests.chaos.workload import Workload
from tests.support.waiting import eventually

USERS = 24
WARM = 20  # conversations that end before the first fault
MEGABYTES, MORE = 640, 40  # of a server in memory, and for each minute
PATIENCE = 180.0  # seconds for a recovery, for the first conversations, and for the calm
PRUNES_WITHIN = 20.0
CLIENTS = "clients"
MORE_TIME = 0.5  # by how much a long run may be longer, until each fault has happened
LATE_TIMERS = 7300  # seconds: twice as far as faults change the clock


@dataclass(frozen=True)
class Options:
    minutes: float = 5.0
    seed: int = 1
    postgres: Literal["15", "18"] = "18"
    chosen: Sequence[str] = tuple(FAULTS)
    workers: int = 3
    users: int = USERS
    logs: Path | None = None  # where the logs of servers and workers are kept


def make_home() -> Path:
    """A folder for everything of a run, through which the server's user may pass."""
    home = Path(tempfile.mkdtemp(prefix="stepwell-chaos-", dir="/tmp"))  # sockets need a short path
    home.chmod(0o755)
    return home


class Run:
    """Holds what one run is made of; `go` returns its report."""

    def __init__(self, options: Options, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self._begun = time.monotonic()
        self._findings = Findings()
        head = (f"chaos: seed {options.seed}, Postgres {options.postgres}, {options.workers} workers, "
                f"{options.users} clients, {options.minutes:g} minutes, lease {LEASE:g} s")  # fmt: skip
        self._report = Report(head, self._findings, options.minutes, options.chosen)
        self._site: Site
        self._logs: Logs
        self._machine = Computer()
        self._provider: Provider

    async def go(self) -> Report:
        self._say(self._report.head)
        async with AsyncExitStack() as stack:
            await self._open(stack)
            await self._strike_all()
            await self._calm()
            site = self._site
            await invariants.check(
                site.replicas.primary, site.workload.conversations, self._provider.ambiguous, site.clock.settings,
                self._findings,
            )  # fmt: skip
            self._read_logs([])
            self._judge_leavings()
            self._report.details += self._findings.details
            self._note()
        return self._report

    async def _open(self, stack: AsyncExitStack) -> None:
        """Start everything, from the servers to the clients; it ends in the reverse order."""
        options = self._options
        home = make_home()
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        stack.callback(self._keep_logs, home)
        stack.callback(write_log(home / CLIENTS_LOG).close)
        self._logs = Logs(home)
        proxies = Proxies(options.seed)
        stack.callback(proxies.close)
        clock = Clock(home)
        replicas = Replicas(self._layout(home, clock), proxies)
        stack.callback(replicas.remove)
        await replicas.start()
        client = proxies.get(CLIENTS)
        url = f"postgresql://postgres@127.0.0.1:{client.port}/{DATABASE}"
        wire = home / WIRE
        wire.touch()
        await make_engine(url, str(wire)).migrate()
        connection = await replicas.primary.connect()
        for statement in CREATE:
            await connection.execute(statement)
        connection.terminate()
        workers = Workers(options.workers, proxies, home, self._findings)
        engine = await stack.enter_async_context(make_engine(url, str(wire)))
        workload = Workload(engine, self._machine, self._findings, options.seed, options.users)
        watch = Watch(replicas)
        dice = random.Random(f"{options.seed} faults")  # noqa: S311 - not a secret
        self._site = Site(replicas, proxies, workers, workload, watch, clock, dice)
        for name in options.chosen:
            if (lacking := await FAULTS[name]().lacks(self._site)) is not None:
                self._report.lacking[name] = lacking
        stack.push_async_callback(workers.close)
        await workers.start()
        self._provider = Provider(engine, replicas, wire, workload, self._findings, options.seed)
        for loop in (watch.run(), self._provider.run(), self._machine.run()):
            task = asyncio.create_task(loop)
            stack.callback(task.cancel)
        workload.start()

    def _layout(self, home: Path, clock: Clock) -> Layout:
        kinds = [FAULTS[name] for name in self._options.chosen]
        megabytes = MEGABYTES + int(MORE * self._options.minutes) if Fill in kinds else None
        moves_clock = any(issubclass(kind, ClockMoved) for kind in kinds)
        return Layout(
            self._options.postgres, home, megabytes, Failover in kinds, clock.environment if moves_clock else {}
        )

    async def _strike_all(self) -> None:
        workload, report = self._site.workload, self._report
        await eventually(lambda: workload.ended >= WARM, PATIENCE)
        self._say(f"{self._since():6.1f} s  the first {workload.ended} conversations have ended")
        seconds = 60 * self._options.minutes
        until = time.monotonic() + seconds
        latest = until + (MORE_TIME * seconds if report.is_long else 0.0)
        struck: list[str] = []
        for strike in strikes(self._options.seed, self._options.chosen):
            is_over = time.monotonic() >= until
            missing = report.missing()
            if (is_over and (not missing or time.monotonic() >= latest)) or not report.possible():
                break
            if strike.fault in report.lacking or (is_over and strike.fault not in missing):
                continue
            await asyncio.sleep(strike.gap)
            self._read_logs(struck)
            struck = [strike.fault] if strike.beside is None else [strike.fault, strike.beside]
            await self._strike(strike)
        self._read_logs(struck)

    def _read_logs(self, struck: list[str]) -> None:
        after = f" (after {' and '.join(struck)})" if struck else ""
        self._findings.logged += [f"{line}{after}" for line in self._logs.unexplained(struck)]

    async def _strike(self, strike: Strike) -> None:
        """Start, hold and end one fault, and wait until the run has recovered from it."""
        site, fault = self._site, FAULTS[strike.fault]()
        self._say(f"{self._since():6.1f} s  {strike}")
        site.workers.is_struck = True
        try:
            await fault.prepare(site)
            recovery = await self._befall(strike, fault)
        except NotNow as reason:
            self._report.missed[strike.fault] = str(reason)
            self._say(f"{self._since():6.1f} s     it did not come: {reason}")
            site.workers.is_struck = False
            return
        self._judge(strike, recovery)
        await self._tidy(strike, fault)
        site.workers.is_struck = False

    async def _tidy(self, strike: Strike, fault: Fault) -> None:
        """Replace lost processes, break dark connections, build another standby; then all have to work."""
        site, begun = self._site, time.monotonic()
        await fault.tidy(site)
        tidied = time.monotonic()
        name = f"strike {strike.number}, after {strike.fault}"
        seconds = await site.watch.all_work(site.workers.at_work, tidied, PATIENCE)
        if seconds is None:
            self._findings.stuck.append(f"{name}: not every worker worked within {PATIENCE:g} s")
        else:
            at_most = limits.RESTARTED.on(self._machine.slowness(begun))
            self._findings.slow += Recovery(0.0, 0.0, 0.0, workers=seconds, at_most=at_most).problems(name)

    async def _befall(self, strike: Strike, fault: Fault) -> Recovery:
        """Cause a fault. One that must be repaired while it lasts is timed from its start, the workers from its end."""
        watch, workers = self._site.watch, self._site.workers
        begun = time.monotonic()
        await fault.begin(self._site)
        at_once = fault.counts_from == "begin"
        recovering = asyncio.create_task(watch.recovered(begun, begun, PATIENCE)) if at_once else None
        try:
            await self._last(strike, fault, begun)
        except NotNow:
            if recovering is not None:
                recovering.cancel()
            raise
        ended = begun if at_once and not any(fault.seconds) else time.monotonic()
        if recovering is None:
            recovering = asyncio.create_task(watch.recovered(begun, ended, PATIENCE))
        working = await watch.all_work(workers.at_work, ended, PATIENCE)
        recovery = await recovering
        limit = fault.at_most if strike.beside is None else fault.at_most + FAULTS[strike.beside].at_most
        return replace(recovery, workers=working, at_most=limit.on(self._machine.slowness(begun)))

    def _judge(self, strike: Strike, recovery: Recovery) -> None:
        self._report.recoveries[strike.fault].append((strike.number, recovery))
        name = f"strike {strike.number}, {strike.fault}"
        name = name if strike.beside is None else f"{name} beside {strike.beside}"
        self._findings.slow += recovery.problems(name)
        if recovery.seconds is None:
            self._findings.stuck.append(
                f"{name}: no recovery within {PATIENCE:g} s: {recovery.unmoved} instances did not move"
            )
            self._report.details += [f"strike {strike.number}: {line}" for line in recovery.details]
        if recovery.workers is None:
            self._findings.stuck.append(f"{name}: not every worker worked within {PATIENCE:g} s")
        took = "none" if recovery.seconds is None else f"{recovery.seconds:.1f} s"
        workers = "never all" if recovery.workers is None else f"after {recovery.workers:.1f} s"
        self._say(f"{self._since():6.1f} s     recovery {took}, all workers {workers}, still "
                  f"{recovery.standstill:.1f} s")  # fmt: skip

    async def _last(self, strike: Strike, fault: Fault, begun: float) -> None:
        """Wait for the duration of the fault; another one may happen in between."""
        if strike.beside is not None:
            await asyncio.sleep(strike.seconds / 2)
            try:
                await FAULTS[strike.beside]().begin(self._site)
                self._report.companions[strike.beside] += 1
            except Exception as error:  # noqa: BLE001 - the server is away by the other fault
                problem = f"{strike.beside} beside {strike.fault} could not happen: {type(error).__name__}: {error}"
                self._report.impossible.append(f"strike {strike.number}: {problem}")
                self._say(f"{self._since():6.1f} s     {problem}")
        await asyncio.sleep(max(0.0, begun + strike.seconds - time.monotonic()))
        await fault.end(self._site)

    async def _calm(self) -> None:
        """No more faults: everything has to end.

        Rows that a fast clock delayed run when the clock has reached that time.
        """
        self._say(f"{self._since():6.1f} s  calm")
        site, calm = self._site, time.monotonic()
        clients = asyncio.create_task(site.workload.calm(PATIENCE))
        while not clients.done() and site.clock.settings:
            [open_] = await site.replicas.primary.query(invariants.OPEN_AND_LATE)
            if open_["late"] and open_["late"] == open_["number"]:
                site.notes.append(f"the clock was moved once more for {open_['late']} timers set when it was ahead")
                site.clock.move(LATE_TIMERS)
                break
            await asyncio.sleep(0.5)
        await clients
        with contextlib.suppress(AssertionError):  # the checks find what is left
            await eventually(self._has_pruned, PRUNES_WITHIN)
        self._report.notes.append(f"clients: the last one ended {time.monotonic() - calm:.1f} s after the last fault")

    async def _has_pruned(self) -> bool:
        return not await self._site.replicas.primary.query(invariants.OVERDUE)

    def _judge_leavings(self) -> None:
        for name, asked, ended in self._site.workers.leavings:
            at_most = limits.LEFT.on(self._machine.slowness(asked, ended))
            if ended - asked > at_most:
                self._findings.slow.append(f"{name} took {ended - asked:.1f} s after SIGTERM, {at_most:.1f} s may")

    def _note(self) -> None:
        site, notes = self._site, self._report.notes
        workload = site.workload
        kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(invariants.by_kind(workload.conversations).items()))
        repeated = workload.repeated + self._provider.repeated
        errors = ", ".join(f"{n} {error}" for error, n in repeated.most_common()) or "none"
        slowest = ", ".join(f"{call} {seconds:.1f} s" for call, seconds in sorted(workload.slowest.items()))
        notes.append(f"conversations: {kinds}; answers admitted: {self._provider.admitted}")
        notes.append(f"calls that failed and were repeated: {errors}; the longest of each: {slowest}")
        notes.append(f"work took {self._machine.slowness(self._begun):.1f} times as long as on a free machine")
        notes.append(f"workers that could not start while a fault lasted: {site.workers.refused}; warnings in all "
                     f"logs: {self._logs.warnings}")  # fmt: skip
        notes += site.notes

    def _keep_logs(self, home: Path) -> None:
        if self._options.logs is not None:
            self._options.logs.mkdir(parents=True, exist_ok=True)
            for log in home.glob("*.log"):
                shutil.copy(log, self._options.logs)

    def _since(self) -> float:
        return time.monotonic() - self._begun

