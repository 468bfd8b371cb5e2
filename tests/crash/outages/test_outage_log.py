"""What a worker logs about an outage of Postgres: one record when it begins, one a minute, one at its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Engine, Machine, step
from stepwell._process import outages
from stepwell.embedded import EmbeddedServer
from stepwell.testing import Harness
from stepwell.testing.transports.scripted import Scripted
from tests.support.own_server import own_server
from tests.support.waiting import eventually

OFTEN = timedelta(milliseconds=100)
PATIENT: dict[str, Any] = {"poll": OFTEN, "max_poll": OFTEN, "heartbeat": OFTEN, "reap": OFTEN,
                           "lease": timedelta(minutes=1)}  # fmt: skip
BEGINS, LASTS = "the database is unavailable (", "the database is unavailable, for "
ENDS = "the database is available again, after "
TEN_STEPS = """
select from pg_stat_activity where application_name like 'stepwell step%' and state = 'idle in transaction'
having count(*) = 10"""
READ_ONLY = ["alter system set default_transaction_read_only = on", "select pg_reload_conf()"]
WRITABLE = ["alter system reset default_transaction_read_only", "select pg_reload_conf()"]


class Gated(Machine):
    """Is done when the test allows it."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        await ctx.resources.wait()
        return Done("done")


class Mailed(Gated, queue="mail"):
    """The same, in a queue of its own."""


class Booked(Machine, queue="books"):
    """The same, in a transaction with its outcome."""

    @step(transactional=True)
    async def start(self, ctx: Context[Any]) -> Done:
        await ctx.resources.wait()
        return Done("done")


class Lines:
    """What was logged."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def failed(self, *names: str) -> bool:
        """Whether each of these services has logged a failure."""
        told = [record.getMessage() for record in self._caplog.records if record.levelno == logging.DEBUG]
        return all(any(line.startswith(f"{name}: ") for line in told) for name in names)

    def of_outages(self, *kinds: str) -> list[str]:
        lines = [record.getMessage() for record in self._caplog.records if record.levelno >= logging.INFO]
        return [line for line in lines if line.startswith(kinds or "the database")]

    def of_else(self) -> list[str]:
        """Tracebacks, and other warnings but those about claims that an outage left behind."""
        lines = [record for record in self._caplog.records if record.levelno >= logging.WARNING or record.exc_info]
        told = [record.getMessage() for record in lines]
        outage = ("the database is unavailable", ENDS)
        return [line for line in told if not line.startswith(outage) and "claim" not in line]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """A server of these tests' own, that they may stop."""
    with own_server() as server:
        yield server


@pytest.fixture
async def own(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Harness]:
    """A database on that server."""
    monkeypatch.setenv("STEPWELL_TEST_DATABASE_URL", server.url())
    async with Harness([Gated, Mailed, Booked]) as harness:
        yield harness


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    caplog.set_level(logging.DEBUG, "stepwell")
    return Lines(caplog)


def engine_of(own: Harness, gate: asyncio.Event) -> Engine:
    transports = [Scripted("post"), Scripted("bank")]
    return Engine(own.url, machines=[Gated, Mailed, Booked], transports=transports, resources=gate, **PATIENT)


async def test_an_outage_is_one_log_record_per_worker_and_one_at_its_end(
    own: Harness, server: EmbeddedServer, lines: Lines
) -> None:
    gate = asyncio.Event()
    async with engine_of(own, gate) as engine, engine.worker({"default": 5, "mail": 5}) as worker:
        started = await engine.start_many([(Gated, {}), (Mailed, {})] * 50)
        await eventually(lambda: worker.running >= 10)

        await asyncio.to_thread(server.stop)
        gate.set()
        await eventually(lambda: lines.failed("listener", "timers", "heartbeat", "committer", "reaper", "reconciler"),
                         60)
        await asyncio.to_thread(server.start)
        results = [await handle.result(timeout=60) for handle in started]
        await eventually(lambda: lines.of_outages(ENDS))

    assert results == ["done"] * 100
    assert (len(lines.of_outages(BEGINS)), len(lines.of_outages(ENDS))) == (1, 1)
    assert lines.of_else() == []


async def test_transactional_steps_that_lose_their_connections_log_nothing_more(
    own: Harness, server: EmbeddedServer, lines: Lines
) -> None:
    gate = asyncio.Event()
    async with engine_of(own, gate) as engine, engine.worker({"books": 10}) as worker:
        started = await engine.start_many([Booked] * 20)
        await eventually(lambda: own.sql(TEN_STEPS))
        assert worker.running == 10

        await asyncio.to_thread(server.stop)
        gate.set()
        await eventually(lambda: lines.failed("committer", "heartbeat", "reaper"), 60)
        await asyncio.to_thread(server.start)
        results = [await handle.result(timeout=60) for handle in started]
        await eventually(lambda: lines.of_outages(ENDS))

    assert results == ["done"] * 20
    assert (len(lines.of_outages(BEGINS)), len(lines.of_outages(ENDS))) == (1, 1)
    assert lines.of_else() == []


async def test_a_long_outage_is_logged_again(
    own: Harness, server: EmbeddedServer, lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outages, "REMIND_AFTER", 0.5)
    async with engine_of(own, asyncio.Event()) as engine, engine.worker():
        await asyncio.to_thread(server.stop)
        await eventually(lambda: len(lines.of_outages(LASTS)) >= 2, 60)
        await asyncio.to_thread(server.start)
        await eventually(lambda: lines.of_outages(ENDS), 60)

    [reminder, *_] = lines.of_outages(LASTS)
    assert "failing: " in reminder
    assert "heartbeat" in reminder
    assert (len(lines.of_outages(BEGINS)), len(lines.of_outages(ENDS))) == (1, 1)


async def test_a_server_that_becomes_read_only_is_one_log_record_with_its_message(own: Harness, lines: Lines) -> None:
    gate = asyncio.Event()
    async with engine_of(own, gate) as engine, engine.worker({"default": 5, "mail": 5}) as worker:
        started = await engine.start_many([(Gated, {}), (Mailed, {})] * 5)
        await eventually(lambda: worker.running == 10)

        for statement in READ_ONLY:
            await own.sql(statement)
        await eventually(lambda: lines.failed("heartbeat", "timers", "reaper"))  # each session notices it by itself
        gate.set()
        await eventually(lambda: lines.failed("committer") or worker.stats.committed == 10)
        for statement in WRITABLE:
            await own.sql(statement)
        results = [await handle.result(timeout=60) for handle in started]
        await eventually(lambda: lines.of_outages(ENDS))

    [begin] = lines.of_outages(BEGINS)
    assert "read-only transaction" in begin
    assert (results, len(lines.of_outages(ENDS)), lines.of_else()) == (["done"] * 10, 1, [])


async def test_an_outage_is_one_log_record_per_engine_without_a_worker(
    own: Harness, server: EmbeddedServer, lines: Lines
) -> None:
    async with Engine(own.url, machines=[Gated]) as client:
        gated = await client.start(Gated)
        waiting = asyncio.create_task(gated.wait(timeout=60))
        await eventually(lambda: client._notifier is not None and client._notifier.is_listening)

        await asyncio.to_thread(server.stop)
        await eventually(lambda: lines.failed("listener"))
        await asyncio.to_thread(server.start)
        await eventually(lambda: lines.of_outages(ENDS))
        await gated.cancel()
        await waiting

    assert (len(lines.of_outages(BEGINS)), len(lines.of_outages(ENDS))) == (1, 1)
    assert lines.of_else() == []
