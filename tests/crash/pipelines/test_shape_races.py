"""A run is started in one shape of a pipeline while another one is registered under the same version."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from stepwell import Engine, Hold, Status, VersionInUse
from stepwell._core.registry import Registry
from stepwell._store.registrations import machines
from stepwell.pipelines import Pipeline, await_, one_to_one
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.race import Race, Session
from tests.support.waiting import eventually, held

PATIENCE = 10
LOOK = ("m.shape is distinct from g.shape", "false")


@one_to_one
async def cents(x: int) -> int:
    return x * 100


def ask(name: str) -> Any:
    return await_(name, over="manual", input=int, output=int)


old = Pipeline("payout", [ask("Ask amount"), cents])
new = Pipeline("payout", [ask("Ask limit"), cents, ask("Ask amount")])


@pytest.fixture
async def h(make_harness: MakeHarness) -> Harness:
    """A database in which the old shape is registered."""
    harness = await make_harness([old])
    await harness.engine.migrate()
    return harness


@pytest.fixture
async def race(h: Harness) -> AsyncIterator[Race]:
    async with AsyncExitStack() as stack:
        yield Race(h, stack)


async def register(session: Session, pipeline: Pipeline) -> None:
    await machines.register(session, Registry([pipeline]).all(), False)  # type: ignore[arg-type]  # as a database


async def started(h: Harness, session: Session) -> int:
    """A run that is started over this connection, in its transaction."""
    return (await h.engine.start(old, 5, connection=session.connection)).id


async def shape(race: Race) -> str:
    [row] = await race.harness.sql("select shape from stepwell.machines where name = 'payout'")
    return str(row["shape"])


async def test_a_run_committed_before_the_check_refuses_the_new_shape(h: Harness, race: Race) -> None:
    starter, newcomer = await race.session(), await race.session()
    await starter.begin()
    run = await started(h, starter)
    await starter.commit()

    with pytest.raises(VersionInUse, match=f"such as {run};"):
        await register(newcomer, new)

    assert await shape(race) == old.shape


async def test_without_the_check_the_new_shape_would_be_registered(h: Harness, race: Race) -> None:
    newcomer = (await race.session()).change("machines/find_in_use", LOOK)
    await h.engine.start(old, 5)

    await register(newcomer, new)

    assert await shape(race) == new.shape


async def test_a_run_committed_after_the_check_starts_in_the_new_shape(h: Harness, race: Race) -> None:
    """It has asked nothing yet, so nothing of it is in the old shape."""
    starter, newcomer = await race.session(), await race.session()
    await starter.begin()
    run = await started(h, starter)
    await register(newcomer, new)
    await starter.commit()

    async with Engine(h.url, machines=[new]) as engine, engine.worker():
        await engine.wait(run, timeout=PATIENCE, until="settled")
        [first] = (await engine.interactions.pending()).items
        await engine.complete(interaction=first.id, reply=7)
        await eventually(lambda: is_asked(engine, 700))

    assert first.request == 5


async def is_asked(engine: Engine, request: Any) -> bool:
    return [question.request for question in (await engine.interactions.pending()).items] == [request]


async def test_a_run_claimed_meanwhile_by_a_worker_of_the_old_shape_is_put_on_hold(
    h: Harness, race: Race
) -> None:
    starter, newcomer = await race.session(), await race.session()
    async with h.engine.worker():
        await starter.begin()
        run = await started(h, starter)
        await register(newcomer, new)
        await starter.commit()
        await h.engine.wait(run, timeout=PATIENCE, until="settled")
    [question] = (await h.engine.interactions.pending()).items
    await h.engine.complete(interaction=question.id, reply=7)

    async with Engine(h.url, machines=[new]) as engine, engine.worker():
        found = await held(engine.handle(run, new))

    assert (found.status, found.hold, found.step) == (Status.RUNNABLE, Hold.UNFIT, f"segment_1.{old.shape}")
    assert (await h.engine.interactions.pending()).items == []


async def test_two_shapes_that_register_at_once_come_one_after_the_other(h: Harness, race: Race) -> None:
    """The later one reads what the first one has written, and the runs that were started meanwhile."""
    first, second = await race.session(), await race.session()
    await first.begin()
    await register(first, new)

    waiting = await race.blocked(second, register(second, old))
    await h.engine.start(old, 5)
    await first.commit()

    with pytest.raises(VersionInUse):
        await waiting
    assert await shape(race) == new.shape


async def test_the_lock_of_registrations_does_not_delay_starts(h: Harness, race: Race) -> None:
    newcomer = await race.session()
    await newcomer.begin()
    await register(newcomer, new)

    run = await h.engine.start(old, 5)

    await newcomer.commit()
    assert (await run.get()).status is Status.RUNNABLE
