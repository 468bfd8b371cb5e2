"""`make slots`: an executing row that is its slot, beside a counter row; 8 connections want slots of one limit.

Both claim rows in batches, mark them started, end them at once and claim the next, through the store's own statements,
and both wait for the disk before anything runs. A connection that finds nothing waits for an end, or 10 ms, as a
worker does. The counter has its best case: the whole queue is under the one limit, so that it needs no wait queue, and
no worker dies, so that nothing has to be rebuilt.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from time import perf_counter, process_time
from typing import Any, Protocol, Self

import asyncpg

from benchmarks import server
from benchmarks.growth.meter import nanoseconds
from benchmarks.growth.site import LABELS, MACHINE, QUEUE, STEP, done
from benchmarks.loop import run
from benchmarks.progress import say
from stepwell import ConcurrencyLimit, Engine
from stepwell._core.instance import Claim
from stepwell._store import limits
from stepwell._store.connection.pool import WORKER
from stepwell._store.connection.sql_files import statement
from stepwell._store.operations import commit
from stepwell._store.operations.claim import ClaimRequest, claim_full, claim_slots
from stepwell._store.registrations import workers
from stepwell._store.registrations.workers import HostIdentity

CONTENDERS = 8
BATCH = 5  # rows of one claim by default
LIMIT = "hot"
PATIENCE = 0.01  # seconds, after a look that found nothing, without an end of others
_FILL = """
with filled as (
  insert into stepwell.instances
    (machine, version, step, queue, due_at, created_at, updated_at, concurrency_limit)
  select $1, 1, $2, $3, stepwell.now(), stepwell.now(), stepwell.now(), $4 from generate_series(1, $5::integer)
  returning id
)
insert into stepwell.instance_data (id, state) select id, '{}' from filled
"""
_COUNTER = """
create table if not exists public.counters (key text primary key, n integer not null, taken integer not null)
"""
_TAKE = """
with was as (select key, n - taken as free from public.counters where key = $1 and taken < n for no key update)
update public.counters c set taken = c.taken + least($2::integer, w.free) from was w where c.key = w.key
returning least($2::integer, w.free)
"""
_RETURN = "update public.counters set taken = taken - $2 where key = $1"


class Contender:
    """One connection as a worker has it, in place of a database of one connection."""

    schema = "stepwell"
    era = 0  # its server is never failed over

    def __init__(self, connection: asyncpg.Connection, batch: int = BATCH) -> None:
        self.connection = connection
        self.batch = batch
        self.worker = 0
        self.in_vain = 0

    async def fetch(self, name: str, *args: object) -> list[asyncpg.Record]:
        return list(await self.connection.fetch(statement(name), *args))

    async def run(self, sql: str) -> None:
        await self.connection.execute(sql)

    def check_era(self, era: int) -> None:
        if era != self.era:
            raise ValueError(f"era {era} on the one connection of era {self.era}")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        async with self.connection.transaction():
            yield self


class Shape(Protocol):
    """A way to count slots."""

    name: str

    async def prepare(self, connection: asyncpg.Connection, instances: int, slots: int) -> None: ...

    async def take(self, by: Any) -> Sequence[Claim]: ...

    async def end(self, by: Any, claims: Sequence[Claim]) -> set[int]:
        """End them; returns the ids of rows that were locked by others."""
        ...


def _request(by: Any, limit: int) -> ClaimRequest:
    return ClaimRequest(worker_id=by.worker, queue=QUEUE, limit=limit, labels=LABELS)


class Rows:
    """Ours: one statement claims rows with a slot and puts the others on hold, and one admits the next after an end."""

    name = "an executing row is its slot"

    async def prepare(self, connection: asyncpg.Connection, instances: int, slots: int) -> None:
        await limits.declare_missing(Contender(connection), [ConcurrencyLimit(LIMIT, slots)])
        await connection.execute(_FILL, MACHINE, STEP, QUEUE, LIMIT, instances)

    async def take(self, by: Any) -> Sequence[Claim]:
        answer = await claim_slots(by, _request(by, by.batch))
        return [] if answer is None else answer.claims

    async def end(self, by: Any, claims: Sequence[Claim]) -> set[int]:
        flushed = await commit.commit(by, [done(claim) for claim in claims], commit.CommitPaths())
        await limits.admit_waiting(by, flushed.slots)
        return {claim.id for claim in claims} if flushed.is_as_sent else {row.id for row in flushed.committed}


class Counter:
    """The other: a row counts what is taken, in the transaction of the claim and in that of the end."""

    name = "a counter row"

    async def prepare(self, connection: asyncpg.Connection, instances: int, slots: int) -> None:
        await connection.execute(_COUNTER)
        await connection.execute("insert into public.counters values ($1, $2, 0)", LIMIT, slots)
        await connection.execute(_FILL, MACHINE, STEP, QUEUE, None, instances)

    async def take(self, by: Any) -> Sequence[Claim]:
        async with by.transaction():
            granted = await by.connection.fetchval(_TAKE, LIMIT, by.batch)
            if granted is None:
                return []
            claims = (await claim_full(by, _request(by, granted))).claims
            if len(claims) < granted:
                await by.connection.execute(_RETURN, LIMIT, granted - len(claims))
            await by.run("set local synchronous_commit = on")  # a count that a crash loses would admit one too many
            return claims

    async def end(self, by: Any, claims: Sequence[Claim]) -> set[int]:
        async with by.transaction():
            ended = {row.id for row in (await commit.write(by, [done(claim) for claim in claims])).committed}
            await by.connection.execute(_RETURN, LIMIT, len(ended))
            return ended


@dataclass(frozen=True, slots=True)
class Figure:
    """One run: admissions per second; microseconds of the server and of Python, and vain looks, for each."""

    pace: float
    server: float
    python: float
    in_vain: float

    @classmethod
    def median(cls, figures: Sequence[Figure]) -> Figure:
        names = ("pace", "server", "python", "in_vain")
        return cls(*(statistics.median(getattr(figure, name) for figure in figures) for name in names))


class Passing:
    """The instances that all contenders together pass through the limit."""

    def __init__(self, shape: Shape, number: int) -> None:
        self._shape = shape
        self._left = number
        self._has_ended = asyncio.Event()  # of an end

    async def contend(self, by: Contender) -> None:
        """Take, end, and take again, until none is left."""
        while self._left:
            claims = await self._shape.take(by)
            if not claims:
                by.in_vain += 1
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._has_ended.wait(), PATIENCE)
                continue
            await workers.mark_started(by, claims[-1].claimed_at, [], claims)
            while claims:
                ended = await self._shape.end(by, claims)
                self._left -= len(ended)
                claims = [claim for claim in claims if claim.id not in ended]
            ended_since, self._has_ended = self._has_ended, asyncio.Event()
            ended_since.set()


async def measure(url: str, shape: Shape, number: int, slots: int, batch: int = BATCH) -> Figure:
    """Measure one run, on a migrated database without rows."""
    async with AsyncExitStack() as stack:
        contenders = [await _contender(url, stack, batch) for _ in range(CONTENDERS)]
        observer = contenders[0].connection
        await shape.prepare(observer, number, slots)
        await observer.execute("vacuum analyze")
        pids = [contender.connection.get_server_pid() for contender in contenders]
        passing = Passing(shape, number)
        server_before, python_before, began = sum(map(nanoseconds, pids)), process_time(), perf_counter()
        await asyncio.gather(*(passing.contend(contender) for contender in contenders))
        wall, python = perf_counter() - began, process_time() - python_before
        used = sum(map(nanoseconds, pids)) - server_before
        ended = await observer.fetchval("select count(*) from stepwell.instances where status = 'done'")
    if ended != number:
        raise RuntimeError(f"{ended} instances are done instead of {number}")
    in_vain = sum(contender.in_vain for contender in contenders)
    return Figure(number / wall, used / 1e3 / number, python * 1e6 / number, in_vain / number)


async def _contender(url: str, stack: AsyncExitStack, batch: int) -> Contender:
    contender = Contender(await asyncpg.connect(url, server_settings=WORKER), batch)
    stack.push_async_callback(contender.connection.close)
    place = HostIdentity("slots", "boot", 1, "process")
    contender.worker = (await workers.register(contender, place, "0", {QUEUE: batch}, LABELS, timedelta(days=1))).id
    return contender


async def compare(url: str, *, number: int, rounds: int, batch: int) -> None:
    """Measure both in turns, with room for all and with room for a fifth of them; then a table."""
    say("| slots | | admissions/s | server, µs each | Python, µs each | vain looks, each |")
    say("|--:|---|--:|--:|--:|--:|")
    async with server.fresh_database(url) as migrated:
        engine = Engine(migrated)
        await engine.migrate()
        for slots in (CONTENDERS * batch, CONTENDERS * batch // 5):
            figures: dict[str, list[Figure]] = {}
            for _ in range(rounds):
                for shape in (Rows(), Counter()):
                    async with server.fresh_database(url, like=migrated) as fresh:
                        figures.setdefault(shape.name, []).append(await measure(fresh, shape, number, slots, batch))
            for name, found in figures.items():
                f = Figure.median(found)
                say(f"| {slots} | {name} | {f.pace:,.0f} | {f.server:,.0f} | {f.python:,.0f} | {f.in_vain:.2f} |")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="make slots", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    parser.add_argument("--batch", type=int, default=BATCH, help="rows of one claim")
    parser.add_argument("--url", help="a Postgres to use instead of one of our own, on this machine")
    options = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    with server.chosen(options.url) as url:
        number, rounds = (80, 1) if options.quick else (4_000, 5)
        run(compare(url, number=number, rounds=rounds, batch=options.batch))


if __name__ == "__main__":
    main()
