"""Everything at once: whatever meets whatever, nothing deadlocks, and what must hold holds at every moment."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from stepwell import CompletionRefused, Engine
from stepwell._worker.running import ask_each
from stepwell.errors import Undeliverable
from stepwell.testing import Harness
from stepwell.transports import Dispatch
from tests.conftest import MakeHarness
from tests.features.interactions.machines import Batch, Expense
from tests.support.asked import problems_in
from tests.support.transports import Recording
from tests.support.waiting import eventually

SECONDS = float(os.environ.get("STEPWELL_ASKS_STRESS_SECONDS", "3"))
SEED = int(os.environ.get("STEPWELL_ASKS_STRESS_SEED", "0")) or random.SystemRandom().randrange(1 << 30)
SOON = timedelta(milliseconds=100)
CHUNK = 4
REPLIES: dict[str, Any] = {"Expense": {"approved": True}, "Batch": 7}
Act = Callable[[], Awaitable[object]]


class Whimsical(Recording):
    """Completes most interactions, loses some, cannot send others."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__("there", reply=lambda dispatch: REPLIES[dispatch.machine], max_in_flight=10)
        self._dice = dice

    async def send(self, dispatch: Dispatch, /) -> Any:
        match self._dice.randrange(10):
            case 0:
                raise ConnectionError("try again")
            case 1:
                raise Undeliverable("never")
            case 2:
                return None
            case _:
                return await super().send(dispatch)


class Crowd:
    """Starts, completes, cancels, restarts and retries at random, and counts what it did."""

    def __init__(self, pool: asyncpg.Pool, engines: list[Engine], dice: random.Random) -> None:
        self._pool, self._engines, self._dice = pool, engines, dice
        self.did: Counter[str] = Counter()

    async def go(self, until: float) -> None:
        """Do one thing after the other until that time."""
        acts = [self.start] * 2 + [self.complete] * 3 + [self.cancel, self.restart, self.retry]
        while asyncio.get_running_loop().time() < until:
            act = self._dice.choice(acts)
            try:
                await act()
                self.did[act.__name__] += 1
            except CompletionRefused as refused:
                self.did[type(refused).__name__] += 1

    @property
    def _engine(self) -> Engine:
        return self._dice.choice(self._engines)

    async def start(self) -> None:
        state = {"transport": self._dice.choice(["manual", "there"]), "on_timeout": self._dice.choice(["wake", "fail"]),
                 "seconds": self._dice.choice([None, 0.05, 0.3])}  # fmt: skip
        if self._dice.random() < 0.3:
            await self._engine.start(Expense, {"amount": 1, **state})
        else:
            items = list(range(self._dice.randrange(12)))
            await self._engine.start(Batch, {"items": items, "window": self._dice.choice([1, 3, 50]), **state})

    async def complete(self) -> None:
        """Complete some interactions, including those that are queued, being sent, or closed."""
        rows = await self._pool.fetch(
            "select i.id::text, u.machine from stepwell.interactions i join stepwell.await_units u on u.id = i.unit_id "
            "where i.finished_at is null or random() < 0.02 order by random() limit 8"
        )
        engine = self._engine
        calls = [engine.complete(interaction=row["id"], reply=REPLIES[row["machine"]]) for row in rows]
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, CompletionRefused):
                self.did[type(result).__name__] += 1
            elif isinstance(result, BaseException):
                raise result

    async def cancel(self) -> None:
        if instance := await self._any("status not in ('done', 'failed', 'cancelled')"):
            await self._engine.cancel(instance)

    async def restart(self) -> None:
        if instance := await self._any("status in ('awaiting_external', 'executing')"):
            await self._engine.restart(instance, step="start")

    async def retry(self) -> None:
        if instance := await self._any("status in ('failed', 'cancelled')"):
            await self._engine.retry(instance)

    async def _any(self, what: str) -> int | None:
        rows = await self._pool.fetch(f"select id from stepwell.instances where {what} order by random() limit 1")
        return rows[0]["id"] if rows else None


async def watch(url: str, until: float) -> int:
    """Check again and again whether every invariant holds; returns how often."""
    looks = 0
    connection = await asyncpg.connect(url)
    try:
        while not looks or asyncio.get_running_loop().time() < until:
            assert await problems_in(connection) == []
            looks += 1
            await asyncio.sleep(0.02)
    finally:
        await connection.close()
    return looks


async def test_every_concurrent_event_is_counted_and_nothing_is_left(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Completions, cancels, restarts, retries, timeouts, sendings and fillings at once, over two workers."""
    print(f"STEPWELL_ASKS_STRESS_SEED={SEED}")  # noqa: T201 - to repeat it
    dice = random.Random(SEED)  # noqa: S311 - not a secret
    monkeypatch.setattr(ask_each, "CHUNK", CHUNK)
    h = await make_harness([Expense, Batch])
    one, other = (h.another_engine(transports=[Whimsical(dice)], reap=SOON) for _ in range(2))

    with caplog.at_level(logging.WARNING, "stepwell"):
        async with (
            asyncpg.create_pool(h.url, min_size=4, max_size=4) as pool, one, other,
            one.worker(poll=SOON, max_poll=SOON) as first, other.worker() as second,
        ):  # fmt: skip
            crowd = Crowd(pool, [one, other], dice)
            until = asyncio.get_running_loop().time() + SECONDS
            looks, *_ = await asyncio.gather(watch(h.url, until), *(crowd.go(until) for _ in range(8)))
            await end_all(h, one)
            await eventually(lambda: is_quiet(h))
            tallies = first.stats, second.stats

    print(f"{looks} looks; {dict(crowd.did)}; {tallies}")  # noqa: T201 - what a run was made of
    assert looks > 0
    assert [tally.reconciled for tally in tallies] == [0, 0]
    assert [record.message for record in caplog.records if "deadlock" in record.message or record.exc_info] == []
    [row] = await h.sql("select deadlocks from pg_stat_database where datname = current_database()")
    assert row["deadlocks"] == 0
    connection = await asyncpg.connect(h.url)
    assert await problems_in(connection) == []
    await connection.close()


async def end_all(h: Harness, engine: Engine) -> None:
    """Cancel every instance that waits for a reply that never comes."""
    for row in await h.sql("select id from stepwell.instances where status not in ('done', 'failed', 'cancelled')"):
        await engine.cancel(row["id"])


async def is_quiet(h: Harness) -> bool:
    [row] = await h.sql(
        "select (select count(*) from stepwell.instances where finished_at is null) "
        "+ (select count(*) from stepwell.await_units where status = 'waiting') "
        "+ (select count(*) from stepwell.interactions where finished_at is null) as open"
    )
    return bool(row["open"] == 0)
