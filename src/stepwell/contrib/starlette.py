"""The lifespan of a Starlette or FastAPI application: it opens the engine, and runs a worker beside it if asked to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

from stepwell.engine import Engine

State = Mapping[str, Any]
Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]  # what an application takes, and calls with itself


def lifespan(
    engine: Engine,
    *,
    worker: bool | Mapping[str, int] | None = None,
    migrate: bool = False,
    then: Lifespan | None = None,
) -> Callable[[Any], AbstractAsyncContextManager[State]]:
    """`FastAPI(lifespan=lifespan(engine))`: the engine is open while the application runs, as `request.state.engine`.

    `worker=True`, or its queues, runs a worker in the same process, which drains at shutdown. `migrate=True` brings
    the schema up to date first. `then` is the application's own lifespan: entered before the worker starts, left
    after it has drained, and inside of the engine.
    """

    @asynccontextmanager
    async def live(app: Any) -> AsyncIterator[State]:
        async with AsyncExitStack() as stack:
            if migrate:
                await engine.migrate()
            await stack.enter_async_context(engine)
            own = None if then is None else await stack.enter_async_context(then(app))
            if worker is not None and worker is not False:  # last in, first out: steps may use what `then` has opened
                await stack.enter_async_context(engine.worker(None if worker is True else worker))
            yield {"engine": engine, **(own or {})}

    return live
