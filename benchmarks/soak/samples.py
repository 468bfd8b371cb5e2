"""Samples of a database during the soak, and figures of its parts of equal length."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import asyncpg

PARTS = 5
HOT = ["instances", "instance", "signals", "workers"]  # how the names of the hot tables and of their indexes begin
MOST = 0.15  # by which the last part may differ from the second

_SIZES = """
select c.relname as name, pg_relation_size(c.oid) as bytes
from pg_class c
where c.relnamespace = 'stepwell'::regnamespace and c.relkind in ('r', 'i') and split_part(c.relname, '_', 1) = any ($1)
order by c.relkind desc, bytes desc
"""
_TUPLES = """
select relname as name, n_live_tup as live, n_dead_tup as dead, autovacuum_count as vacuums,
       n_tup_upd as updated, n_tup_hot_upd as hot, n_tup_del as deleted
from pg_stat_user_tables
where schemaname = 'stepwell' and split_part(relname, '_', 1) = any ($1)
"""
_LAG = """
select coalesce(extract(epoch from pg_catalog.now() - min(finished_at)), 0)
from stepwell.instances
where machine = $1 and status in ('done', 'failed', 'cancelled')
"""


@dataclass(frozen=True, slots=True)
class Tuples:
    """Rows of a table, as the server counts them; the last three since its beginning."""

    live: int
    dead: int
    vacuums: int
    updated: int
    hot: int
    deleted: int


@dataclass(frozen=True, slots=True)
class Cpu:
    """Microseconds on a core since the beginning: of the workers' processes, and of the server's for all
    connections.
    """

    python: float
    server: float


NONE = Cpu(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample."""

    steps: int
    seconds: float
    wal: int  # bytes since the beginning
    oldest: float  # seconds since the oldest ended row ended
    sizes: Mapping[str, int]  # bytes of tables and indexes
    tuples: Mapping[str, Tuples]
    cpu: Cpu


async def look(
    connection: asyncpg.Connection, machine: str, steps: int, seconds: float, origin: str, cpu: Cpu = NONE
) -> Sample:
    """Take a sample; `origin` is the WAL position at the beginning."""
    wal: Decimal = await connection.fetchval("select pg_current_wal_insert_lsn() - $1::text::pg_lsn", origin)
    sizes = {row["name"]: row["bytes"] for row in await connection.fetch(_SIZES, HOT)}
    tuples = {name: Tuples(*counts) for name, *counts in await connection.fetch(_TUPLES, HOT)}
    return Sample(steps, seconds, int(wal), float(await connection.fetchval(_LAG, machine)), sizes, tuples, cpu)


@dataclass(frozen=True, slots=True)
class Part:
    """One of the PARTS of the soak: rates over it, and averages."""

    steps: int  # at its end
    rate: float  # steps per second
    python: float  # microseconds on a core per step, of the workers
    server: float  # the same, of the server's connections
    wal: float  # bytes per step
    oldest: float  # the most
    dead: float  # share of all rows in `instances`
    vacuums: int  # of `instances`
    hot: float  # share of the updates of `instances`
    sizes: Mapping[str, float]

    @classmethod
    def between(cls, before: Sample, samples: Sequence[Sample]) -> Part:
        """Of the samples of one part, and the last one before it."""
        last = samples[-1]
        steps = last.steps - before.steps
        rows = [sample.tuples["instances"] for sample in samples]
        first, end = before.tuples["instances"], rows[-1]
        return cls(
            last.steps,
            steps / (last.seconds - before.seconds),
            (last.cpu.python - before.cpu.python) / steps,
            (last.cpu.server - before.cpu.server) / steps,
            (last.wal - before.wal) / steps,
            max(sample.oldest for sample in samples),
            statistics.mean(row.dead / max(row.dead + row.live, 1) for row in rows),
            end.vacuums - first.vacuums,
            (end.hot - first.hot) / max(end.updated - first.updated, 1),
            {name: statistics.mean(sample.sizes[name] for sample in samples) for name in last.sizes},
        )


def parts(samples: Sequence[Sample]) -> list[Part]:
    """The soak in parts of equal numbers of steps; the first sample is its beginning."""
    each = samples[-1].steps / PARTS
    found = []
    before = samples[0]
    for number in range(1, PARTS + 1):
        within = [s for s in samples if each * (number - 1) < s.steps <= each * number + 0.5]
        if within:
            found.append(Part.between(before, within))
            before = within[-1]
    return found


@dataclass(frozen=True, slots=True)
class Change:
    """One figure of the second part and of the last."""

    name: str
    second: float
    last: float
    grows_well: bool  # more of it is no harm

    @property
    def ratio(self) -> float:
        return self.last / self.second if self.second else 1.0

    @property
    def is_flat(self) -> bool:
        return self.ratio >= 1 - MOST if self.grows_well else self.ratio <= 1 + MOST


def changes(found: Sequence[Part]) -> list[Change]:
    """Throughput and sizes, from the second part to the last."""
    second, last = found[1], found[-1]
    sizes = [Change(name, second.sizes[name], last.sizes[name], False) for name in last.sizes]
    return [Change("steps/s", second.rate, last.rate, True), *sizes]
