"""What a step leaves behind: bytes of WAL, row versions that a vacuum has to remove, and heap-only updates."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.growth.fills import Kind, fill
from benchmarks.growth.site import Site

STEPS = 10  # of an instance that runs ahead
BATCH = 500
HEAD = ("a step", "WAL, bytes", "row versions for vacuum", "heap-only updates")

_COUNTED = """
select sum(n_tup_upd)::bigint as updated, sum(n_tup_hot_upd)::bigint as hot
from pg_stat_user_tables
where schemaname = 'stepwell' and relname in ('instances', 'instance_data')
"""


@dataclass(frozen=True, slots=True)
class Leaving:
    """Per step, of both hot tables together, claim and commit included."""

    label: str
    wal: float
    dead: float
    hot: float  # share of all updates

    def cells(self) -> tuple[str, ...]:
        return self.label, f"{self.wal:,.0f}", f"{self.dead:.2f}", f"{self.hot:.0%}"


async def leavings(site: Site, rows: int) -> list[Leaving]:
    """Of instances with one step, and of some with steps that run ahead."""
    return [
        await _leaving("of an instance of one step", site, rows, 1),
        await _leaving(f"that runs ahead, of an instance of {STEPS}", site, rows, STEPS),
    ]


async def _leaving(label: str, site: Site, rows: int, steps: int) -> Leaving:
    await site.empty()
    await fill(site.url, Kind(), rows)
    await site.vacuum()
    before = await site.observer.fetchrow(_COUNTED)
    wal = await site.observer.fetchval("select pg_current_wal_insert_lsn()::text")
    await site.work(rows, min(rows, BATCH), steps)
    bytes_ = await site.observer.fetchval("select pg_current_wal_insert_lsn() - $1::text::pg_lsn", wal)
    await site.meter.flush_counters()
    counted = await site.observer.fetchrow(_COUNTED)
    updated, hot = counted["updated"] - before["updated"], counted["hot"] - before["hot"]
    done = rows * steps
    return Leaving(label, float(bytes_) / done, (updated - hot) / done, hot / max(updated, 1))
