"""A role with the rights that the guide names, and no others, runs a worker with interactions and signals."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from stepwell import Engine
from tests.conftest import MakeHarness
from tests.features.interactions.machines import Batch, Expense
from tests.features.signals.machines import Waiter
from tests.quality.docs.test_sql_guide import named_as_here
from tests.support.transports import Recording
from tests.support.waiting import eventually
from tests.surfaces.sql_and_drivers.roles import connected, role

GUIDE = (Path(__file__).parents[3] / "docs/guides/database.md").read_text()
GRANTS = named_as_here(GUIDE.partition("grant usage on schema")[2].partition("```")[0])


async def test_the_rights_of_the_guide_are_enough_for_a_worker_with_interactions(
    make_harness: MakeHarness,
) -> None:
    h = await make_harness([Expense, Batch])
    async with role(h, "worker") as url, connected(h.url) as owner:
        await owner.execute(f"grant usage on schema{GRANTS}".replace("shop_app", str(urlsplit(url).username)))
        there = Recording("there", reply=7)

        async with Engine(url, machines=[Expense, Batch], transports=[there]) as engine, engine.worker():
            expense = await engine.start(Expense, {"amount": 7, "seconds": 60.0})
            batch = await engine.start(Batch, {"items": [1, 2], "transport": "there", "window": 1})
            [asked] = await eventually(lambda: pending(engine))
            async with Engine(url) as stranger:  # has no machine: the database checks the reply by its schema
                await stranger.complete(interaction=asked, reply={"approved": True})
            answers = await expense.wait(timeout=30), await batch.wait(timeout=30)

    assert [a.status for a in answers] == ["done", "done"]


async def test_the_rights_of_the_guide_are_enough_to_signal_many_to_a_worker(
    make_harness: MakeHarness,
) -> None:
    h = await make_harness([Waiter])
    async with role(h, "worker") as url, connected(h.url) as owner:
        await owner.execute(f"grant usage on schema{GRANTS}".replace("shop_app", str(urlsplit(url).username)))

        async with Engine(url, machines=[Waiter]) as engine, engine.worker():
            for number in (1, 40):  # the first one shows where signals wake instances
                waiters = [await engine.start(Waiter) for _ in range(number)]
                for waiter in waiters:
                    await waiter.wait(timeout=30, until="settled")
                await engine.signal_many([(waiter.id, "go") for waiter in waiters])
                results = [await waiter.result(timeout=30) for waiter in waiters]

    assert results == [[["go", None]]] * 40


async def pending(engine: Engine) -> list[str]:
    return [q.id for q in (await engine.interactions.pending(transport="manual")).items]
