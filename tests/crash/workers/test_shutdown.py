"""A process with a worker ends within drain_timeout plus two seconds of SIGTERM, unless its steps left threads."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from stepwell import engine
from stepwell._notify import notifier
from stepwell._store.connection import settings
from stepwell._worker import worker
from stepwell.embedded import EmbeddedServer
from stepwell.testing import Harness
from tests.support.own_server import frozen, own_server
from tests.support.shutdown_process import Deaf, Sleeper, Threaded

ROOT = Path(__file__).parents[3]
DRAIN_TIMEOUT = 0.5
PROMISED = DRAIN_TIMEOUT + 2.0
LOADED = 6.0  # seconds that a loaded machine may add; without the promise it never ends, or takes a minute
PATIENCE = 60.0


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with own_server() as server:
        yield server


@pytest.fixture
async def own(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Harness]:
    monkeypatch.setenv("STEPWELL_TEST_DATABASE_URL", server.url())
    async with Harness([Sleeper, Deaf, Threaded]) as harness:
        yield harness


@contextmanager
def away(server: EmbeddedServer, how: str) -> Iterator[None]:
    """Stop the server for the length of the block."""
    if how == "frozen":
        with frozen(server):
            yield
        return
    if how == "stopped":
        server.stop("immediate")
    try:
        yield
    finally:
        if how == "stopped":
            server.start()


@asynccontextmanager
async def process(url: str, *flags: str) -> AsyncIterator[Process]:
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.shutdown_process", url, "--drain-timeout", str(DRAIN_TIMEOUT), *flags,
        stdout=PIPE, cwd=ROOT,
    )  # fmt: skip
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
            await started.wait()


async def says(started: Process, text: str) -> None:
    assert started.stdout is not None
    async with asyncio.timeout(PATIENCE):
        while text not in (line := await started.stdout.readline()).decode():
            assert line, f"the process ended without saying {text!r}"


@pytest.mark.parametrize("database", ["there", "stopped", "frozen"])
@pytest.mark.parametrize("machines", [[Sleeper], [Deaf], [Sleeper, Deaf]])
async def test_a_process_ends_within_drain_timeout_plus_two_seconds(
    own: Harness, server: EmbeddedServer, machines: list[type[Sleeper] | type[Deaf]], database: str
) -> None:
    async with process(own.url) as started:
        await says(started, "ready")
        handles = [await own.engine.start(machine) for machine in machines]
        for _ in handles:
            await says(started, "begun")

        with away(server, database):
            started.terminate()
            async with asyncio.timeout(PROMISED + LOADED):
                said, _ = await started.communicate()

    assert started.returncode == 0
    assert f"{len(handles)} steps did not end within drain_timeout" in said.decode()
    assert all(f"#{handle.id}" in said.decode() for handle in handles)
    if Sleeper in machines:
        assert "1 sync steps are still running in threads" in said.decode()


async def test_a_process_ends_in_time_beside_a_callback_that_never_returns(
    own: Harness, server: EmbeddedServer
) -> None:
    async with process(own.url, "--hook") as started:
        await says(started, "ready")
        await own.engine.start(Deaf)
        await says(started, "begun")

        with away(server, "frozen"):
            started.terminate()
            async with asyncio.timeout(PROMISED + LOADED):
                await started.communicate()

    assert started.returncode == 0


@pytest.mark.parametrize("step", ["wait_in_a_pool", "wait_in_new_pools", "wait_in_a_loop"])
async def test_a_process_ends_in_time_beside_pools_that_its_sync_steps_made(own: Harness, step: str) -> None:
    async with process(own.url, "--code", "3") as started:
        await says(started, "ready")
        handle = await own.engine.start(Threaded, step=step)
        await says(started, "begun")

        started.terminate()
        async with asyncio.timeout(PROMISED + LOADED):
            said, _ = await started.communicate()

    assert started.returncode == 3
    *_, in_threads, left, last = said.decode().splitlines()
    assert "1 sync steps are still running in threads" in in_threads
    assert f"1 steps did not end within drain_timeout; the reaper returns them: Threaded.{step} #{handle.id}" in left
    assert last == "exit handlers ran"


async def test_a_process_may_leave_threads_that_its_steps_have_started(own: Harness) -> None:
    async with process(own.url, "--leave") as started:
        await says(started, "ready")
        handle = await own.engine.start(Threaded)
        await says(started, "begun")

        started.terminate()
        async with asyncio.timeout(PROMISED + LOADED):
            said, _ = await started.communicate()

    assert started.returncode == 0
    *_, threads, last = said.decode().splitlines()
    assert "threads that steps may have started: asyncio_0" in threads
    assert "1 steps did not end within drain_timeout" in last
    assert f"#{handle.id}" in last


def test_all_phases_of_a_shutdown_together_take_less_than_two_seconds() -> None:
    closing = notifier.STOP_TIMEOUT + settings.CLOSE_TIMEOUT + engine.LEAST_FOR_HOOKS

    assert worker.CLOSING + max(engine.CLOSING, closing) < 2.0


@pytest.mark.parametrize("machine", [Sleeper, Deaf])
async def test_a_step_left_behind_by_a_shutdown_counts_an_attempt_and_no_crash(
    own: Harness, machine: type[Sleeper] | type[Deaf]
) -> None:
    handle = await own.engine.start(machine)
    for attempt in (0, 1):
        async with process(own.url) as started:
            await says(started, "begun")
            assert (await handle.get()).attempt == attempt
            started.terminate()
            await started.communicate()

    left = await handle.get()
    assert left.crashes == 0
