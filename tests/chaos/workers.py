"""Worker processes: each runs `stepwell worker` behind a proxy of its own, and is replaced when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from stepwell._cli.exit_codes import DATABASE as NO_DATABASE
from tests.chaos.findings import Findings
from tests.chaos.proxy import Proxies, Proxy

ROOT = Path(__file__).parents[2]
LEASE, BEAT, REAP, POLL, MAX_POLL, DRAIN = 6.0, 2.0, 1.0, 0.5, 1.0, 3.0
DATABASE = "postgres"
WIRE = "wire"  # the file into which interactions are sent
PATIENCE = 30.0
_SETTINGS = {
    "lease": LEASE, "heartbeat": BEAT, "reap": REAP, "poll": POLL, "max-poll": MAX_POLL, "drain-timeout": DRAIN,
}  # fmt: skip


@dataclass
class Place:
    """One place for a worker: its proxy, and the process that runs there now."""

    number: int
    proxy: Proxy
    process: asyncio.subprocess.Process | None = None
    is_expected_to_end: bool = False
    is_stopped: bool = False
    drained_at: float | None = None  # when it was asked to end, or was able to receive that
    may_run: asyncio.Event = field(default_factory=asyncio.Event)  # unset: no process takes the place of a killed one

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.returncode is None


class Workers:
    """Keeps a worker process in every place."""

    def __init__(self, number: int, proxies: Proxies, logs: Path, findings: Findings) -> None:
        self.places = [Place(n, proxies.get(f"worker {n}")) for n in range(number)]
        self.refused = 0  # processes that could not open their engine, while a fault lasted
        self.is_struck = False  # whether a fault lasts, or the run recovers from one
        self.leavings: list[tuple[str, float, float]] = []  # ended after SIGTERM: name, signal, end
        self._findings = findings
        self._logs = logs
        self._keepers: list[asyncio.Task[None]] = []
        self._is_closing = False

    async def start(self) -> None:
        for place in self.places:
            place.may_run.set()
        self._keepers = [asyncio.create_task(self._keep(place)) for place in self.places]

    def at_work(self) -> set[int]:
        """The processes of all places that should have one; 0 stands for one that does not run at this moment."""
        return {place.process.pid if place.process is not None and place.is_alive else 0
                for place in self.places if place.may_run.is_set() and not place.is_stopped}  # fmt: skip

    async def _keep(self, place: Place) -> None:
        while not self._is_closing:
            await place.may_run.wait()
            log = self._log(place)
            read = log.stat().st_size if log.exists() else 0
            place.is_expected_to_end, place.is_stopped, place.drained_at = False, False, None
            place.process = await self._spawn(place)
            code = await place.process.wait()
            if self._is_closing:
                return
            was_ready = b" ready: " in log.read_bytes()[read:]
            self.judge(place, code, was_ready=was_ready)
            if not place.is_expected_to_end:
                await asyncio.sleep(0.5)

    def judge(self, place: Place, code: int, *, was_ready: bool) -> None:
        """Whether a process could end like that."""
        name = f"the process of worker {place.number}"
        if code == NO_DATABASE and not was_ready and self.is_struck:
            self.refused += 1
        elif not place.is_expected_to_end:
            self._findings.logged.append(f"{name} ended by itself with {code}")
        elif code not in (0, -signal.SIGKILL) and was_ready:
            self._findings.logged.append(f"{name} was asked to end, and ended with {code}")
        if code == 0 and place.drained_at is not None:
            self.leavings.append((name, place.drained_at, time.monotonic()))

    def _log(self, place: Place) -> Path:
        return self._logs / f"worker-{place.number}.log"

    async def _spawn(self, place: Place) -> asyncio.subprocess.Process:
        url = f"postgresql://postgres@127.0.0.1:{place.proxy.port}/{DATABASE}"
        settings = [word for name, value in _SETTINGS.items() for word in (f"--{name}", str(value))]
        with self._log(place).open("ab") as log:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "stepwell", "worker", "tests.chaos.machines:engine", "--queue", "default=20",
                *settings, cwd=ROOT, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, "STEPWELL_DATABASE_URL": url, "STEPWELL_CHAOS_WIRE": str(self._logs / WIRE)},
            )  # fmt: skip

    def kill(self, place: Place) -> None:
        """End its process at once; another one takes its place, and finds on its host that it is dead."""
        self._signal(place, signal.SIGKILL, ends=True)

    def lose(self, place: Place) -> None:
        """End its process as its host does that loses power: nothing starts there, until `replace`."""
        place.may_run.clear()
        self.kill(place)

    def replace(self, place: Place) -> None:
        place.may_run.set()

    def drain(self, place: Place) -> None:
        """Ask its process to end."""
        self._signal(place, signal.SIGTERM, ends=True)
        place.drained_at = time.monotonic()

    def stop(self, place: Place) -> None:
        """Stop its process without ending it."""
        place.is_stopped = True
        self._signal(place, signal.SIGSTOP)

    def resume(self, place: Place) -> None:
        self._signal(place, signal.SIGCONT)
        place.is_stopped = False
        if place.drained_at is not None:
            place.drained_at = time.monotonic()

    def _signal(self, place: Place, number: signal.Signals, *, ends: bool = False) -> None:
        if place.process is None or place.process.returncode is not None:
            return
        place.is_expected_to_end = place.is_expected_to_end or ends
        with contextlib.suppress(ProcessLookupError):
            place.process.send_signal(number)

    async def close(self) -> None:
        self._is_closing = True
        for place in self.places:
            self.resume(place)
            self.drain(place)
            self.replace(place)
        _, left = await asyncio.wait(self._keepers, timeout=PATIENCE) if self._keepers else (set(), set())
        for place in self.places:
            self.kill(place)
        if left:
            await asyncio.wait(left)
