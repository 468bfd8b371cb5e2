"""The faults that befall workers and the server, one class each."""

from __future__ import annotations

import asyncio
import random
from abc import ABC
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from tests.chaos import limits
from tests.chaos.clock import Clock
from tests.chaos.proxy import Proxies
from tests.chaos.recovery import Watch
from tests.chaos.replicas import Replicas
from tests.chaos.workers import LEASE, Place, Workers
from tests.chaos.workload import Workload
from tests.support.waiting import eventually

STREAMS_WITHIN = 20.0  # seconds; after a restart of the primary the standby takes some time to return
CUT = (
    "select pg_terminate_backend(pid) from pg_stat_activity "
    "where backend_type = 'client backend' and application_name <> 'chaos' and pid <> pg_backend_pid()"
)


@dataclass
class Site:
    """What faults may get hold of."""

    replicas: Replicas
    proxies: Proxies
    workers: Workers
    workload: Workload
    watch: Watch
    clock: Clock
    dice: random.Random
    notes: list[str] = field(default_factory=list)

    def some_place(self) -> Place:
        """A host with a running process."""
        chosen = self.dice.randrange(len(self.workers.places))
        places = [*self.workers.places[chosen:], *self.workers.places[:chosen]]
        place = next((place for place in places if place.is_alive), None)
        if place is None:
            raise NotNow("no worker process runs")
        return place


class NotNow(Exception):
    """The fault cannot happen at this moment, or it had no effect."""


class Fault(ABC):
    """Begins, lasts for some seconds, and ends; `tidy` follows when the run has recovered.

    `prepare`, `begin` and `end` may raise NotNow.
    """

    name: ClassVar[str]
    at_most: ClassVar[limits.Limit]  # what a recovery may take, and until every worker commits again
    counts_from: ClassVar[Literal["begin", "end"]] = "end"
    seconds: ClassVar[tuple[float, float]] = (0.0, 0.0)
    cheap: ClassVar[bool] = False  # may befall a run beside another fault

    async def lacks(self, site: Site) -> str | None:
        """What this machine lacks for it; None if nothing."""
        return None

    async def prepare(self, site: Site) -> None: ...  # noqa: B027 - most need nothing

    async def begin(self, site: Site) -> None: ...  # noqa: B027 - some only end

    async def end(self, site: Site) -> None: ...  # noqa: B027 - some only begin

    async def tidy(self, site: Site) -> None: ...  # noqa: B027 - most leave nothing


class Kill(Fault):
    """SIGKILL to one worker; another process takes its place."""

    at_most = limits.REPLACED
    name, counts_from, cheap = "kill", "begin", True

    async def begin(self, site: Site) -> None:
        site.workers.kill(site.some_place())


class Lose(Fault):
    """SIGKILL to one worker, and no other process starts on its host: only its lease shows that it is dead."""

    at_most = limits.BURIED
    name, counts_from = "lose", "begin"

    async def begin(self, site: Site) -> None:
        self._place = site.some_place()
        site.workers.lose(self._place)

    async def tidy(self, site: Site) -> None:
        site.workers.replace(self._place)


class Drain(Fault):
    """SIGTERM to one worker, as at a deploy."""

    at_most = limits.DRAINED
    name, counts_from, cheap = "drain", "begin", True

    async def begin(self, site: Site) -> None:
        site.workers.drain(site.some_place())


class Stop(Fault):
    """SIGSTOP to one worker for longer than its lease; then it continues."""

    at_most = limits.BURIED
    name, counts_from, seconds = "stop", "begin", (LEASE + 1, LEASE + 3)

    async def begin(self, site: Site) -> None:
        self._place = site.some_place()
        site.workers.stop(self._place)

    async def end(self, site: Site) -> None:
        site.workers.resume(self._place)


class Terminate(Fault):
    """pg_terminate_backend for all connections of workers and clients."""

    at_most = limits.CONNECTED
    name, counts_from, cheap = "terminate", "begin", True

    async def begin(self, site: Site) -> None:
        if not await site.replicas.primary.query(CUT):
            raise NotNow("there was no connection to end")


class RestartFast(Fault):
    """The server is stopped as at a planned restart, and started again."""

    at_most = limits.CONNECTED
    name, seconds = "restart-fast", (0.0, 1.0)

    async def begin(self, site: Site) -> None:
        await asyncio.to_thread(site.replicas.primary.stop, "fast")

    async def end(self, site: Site) -> None:
        await asyncio.to_thread(site.replicas.primary.start)


class RestartImmediate(Fault):
    """The server is stopped as by a crash, and recovers from its log."""

    at_most = limits.CONNECTED
    name, seconds = "restart-immediate", (0.0, 1.0)

    async def begin(self, site: Site) -> None:
        await asyncio.to_thread(site.replicas.primary.stop, "immediate")

    async def end(self, site: Site) -> None:
        await asyncio.to_thread(site.replicas.primary.start)


class Freeze(Fault):
    """All processes of the server are stopped for longer than the lease, and then continue."""

    at_most = limits.BURIED
    name, seconds = "freeze", (LEASE + 1, LEASE + 4)

    async def begin(self, site: Site) -> None:
        await asyncio.to_thread(site.replicas.primary.freeze)

    async def end(self, site: Site) -> None:
        await asyncio.to_thread(site.replicas.primary.thaw)


class ReadOnly(Fault):
    """The server refuses writes, as at a switchover."""

    at_most = limits.CONNECTED
    name, seconds = "read-only", (2.0, 4.0)

    async def begin(self, site: Site) -> None:
        await self._set(site, "set default_transaction_read_only = on")

    async def end(self, site: Site) -> None:
        await self._set(site, "reset default_transaction_read_only")

    async def _set(self, site: Site, what: str) -> None:
        await site.replicas.primary.query(f"alter system {what}")
        await site.replicas.primary.query("select pg_reload_conf()")


class Fill(Fault):
    """The server's file system is full; a server that gives up is started again when there is room."""

    at_most = limits.CONNECTED
    name, seconds = "fill", (3.0, 6.0)

    async def lacks(self, site: Site) -> str | None:
        return site.replicas.no_memory

    async def begin(self, site: Site) -> None:
        await asyncio.to_thread(site.replicas.primary.fill)

    async def end(self, site: Site) -> None:
        primary = site.replicas.primary
        await asyncio.to_thread(primary.empty)
        if not primary.is_running:
            site.notes.append("fill: the server gave up (PANIC), and was started again")
            await asyncio.to_thread(primary.start)


class Failover(Fault):
    """The standby receives nothing for a second or more, and is promoted; the old primary is lost."""

    at_most = limits.BURIED
    name, seconds = "failover", (1.0, 1.5)

    async def prepare(self, site: Site) -> None:
        try:
            await eventually(site.replicas.is_streaming, STREAMS_WITHIN)
        except AssertionError:
            raise NotNow(f"the standby did not stream within {STREAMS_WITHIN:g} s") from None

    async def begin(self, site: Site) -> None:
        site.replicas.cut_replication()

    async def end(self, site: Site) -> None:
        survived = await site.replicas.fail_over()
        moment = site.watch.sure_until(survived)
        again = await site.workload.lose_since(moment, site.replicas.primary)
        site.replicas.lead_to(site.replicas.primary)
        site.notes.append(f"failover: the clients said again what the standby may not have had: {again} conversations")

    async def tidy(self, site: Site) -> None:
        await site.replicas.add_standby()


class ClockMoved(Fault):
    """The server's clock is changed, and changed back; a worker is lost while it returns."""

    ahead: ClassVar[int]
    at_most = limits.BURIED_LATE
    seconds = (4.0, 8.0)

    async def lacks(self, site: Site) -> str | None:
        return await site.clock.problem(site.replicas.primary)

    async def begin(self, site: Site) -> None:
        site.clock.move(self.ahead)

    async def end(self, site: Site) -> None:
        site.clock.move(0)
        self._place = site.some_place()
        site.workers.lose(self._place)

    async def tidy(self, site: Site) -> None:
        site.workers.replace(self._place)


class ClockForward(ClockMoved):
    """One hour forward, and back."""

    name, ahead = "clock-forward", 3600


class ClockBack(ClockMoved):
    """One hour back, and forward again."""

    name, ahead = "clock-back", -3600
