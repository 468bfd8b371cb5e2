"""Event loops: `engine.sync` blocks none, and an engine serves the one it was opened in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stepwell import Engine, ForeignLoop, InsideLoop
from tests.surfaces.sync.machines import MACHINES, Doubled

REFUSED: list[tuple[Callable[[Engine], Any], str, str]] = [
    (lambda e: e.sync.start(Doubled), "engine.sync.start", "await engine.start(...)"),
    (lambda e: e.sync.migrate(), "engine.sync.migrate", "await engine.migrate(...)"),
    (lambda e: e.sync.handle(7).result(), "engine.sync.handle(7).result", "await engine.handle(7).result(...)"),
    (lambda e: e.sync.insights.list(), "engine.sync.insights.list", "await engine.insights.list(...)"),
    (lambda e: list(e.sync.insights.each()), "engine.sync.insights.list", "await engine.insights.list(...)"),
    (lambda e: e.sync.worker().__enter__(), "engine.sync.worker", "async with engine.worker(...)"),
    (lambda e: e.sync.__enter__(), "`with engine.sync`", "async with engine"),
    (lambda e: e.sync.close(), "engine.sync.close", "await asyncio.to_thread(engine.sync.close)"),
]


@pytest.mark.parametrize(("call", "named", "instead"), REFUSED)
def test_inside_a_loop_a_blocking_call_is_refused_and_names_the_async_one(
    engine: Engine, call: Callable[[Engine], Any], named: str, instead: str
) -> None:
    async def main() -> None:
        call(engine)

    with pytest.raises(InsideLoop) as caught:
        asyncio.run(main())

    assert str(caught.value) == f"{named} would block the event loop of this thread; use `{instead}` instead"


FOREIGN: list[Callable[[Engine], Any]] = [
    lambda e: e.start(Doubled),
    lambda e: e.handle(1).result(),
    lambda e: e.handle(1).get(),
    lambda e: e.insights.list(),
    lambda e: e.migrate(),
    lambda e: e.check(),
    lambda e: e.close(),
    lambda e: e.__aenter__(),
    lambda e: e.worker().__aenter__(),
]


def test_an_engine_open_in_another_loop_refuses_and_says_what_to_do(engine: Engine) -> None:
    async def elsewhere(call: Callable[[Engine], Any]) -> None:
        with pytest.raises(ForeignLoop, match=r"give each loop an Engine of its own, or call `engine\.sync`"):
            await call(engine)

    async def main() -> int:
        async with engine:
            for call in FOREIGN:
                await asyncio.to_thread(lambda call=call: asyncio.run(elsewhere(call)))
            return (await engine.start(Doubled)).id  # it continues to serve its own

    assert asyncio.run(main()) > 0


def test_an_engine_may_be_opened_in_one_loop_after_another(url: str) -> None:
    engine = Engine(url, machines=MACHINES)

    async def main() -> int:
        async with engine:
            return (await engine.start(Doubled)).id

    assert asyncio.run(main()) < asyncio.run(main())
