"""Wrappers of every sync step, in its thread: an app context, connections that need care."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from stepwell import Context, DefinitionError, Done, Engine, Machine, job, step
from tests.conftest import MakeHarness


class Log:
    """Says what happened in which thread, in order."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, int]] = []

    def add(self, what: str) -> None:
        self.entries.append((what, threading.get_ident()))

    @contextmanager
    def around(self) -> Iterator[None]:
        self.add("enter")
        try:
            yield
        finally:
            self.add("leave")


class Talking(Machine):
    @step
    def start(self, ctx: Context[Any]) -> Done:
        ctx.resources.add("step")
        return Done("done")

    @step
    def broken(self, ctx: Context[Any]) -> Done:
        raise ValueError("broken")

    @step
    async def in_the_loop(self, ctx: Context[Any]) -> Done:
        ctx.resources.add("step")
        return Done("done")

    def handle(self, error: BaseException, ctx: Context[Any]) -> Done:
        ctx.resources.add("handle")
        return Done(f"{type(error).__name__}: {error}")


async def run(make_harness: MakeHarness, log: Log, step_name: str, around: Any) -> Any:
    h = await make_harness([Talking], resources=log, around_sync_steps=around)
    talking = await h.engine.start(Talking, step=step_name)
    async with h.engine.worker():
        return await talking.result(timeout=30)


async def test_a_sync_step_is_wrapped_in_its_own_thread(make_harness: MakeHarness) -> None:
    log = Log()

    await run(make_harness, log, "start", log.around)

    assert [what for what, _ in log.entries] == ["enter", "step", "leave"]
    assert len({thread for _, thread in log.entries}) == 1
    assert log.entries[0][1] != threading.get_ident()


async def test_a_step_that_raises_exits_in_order_and_its_sync_handle_is_wrapped(
    make_harness: MakeHarness,
) -> None:
    log = Log()

    assert await run(make_harness, log, "broken", log.around) == "ValueError: broken"

    assert [what for what, _ in log.entries] == ["enter", "leave", "enter", "handle", "leave"]


async def test_an_async_step_is_not_wrapped(make_harness: MakeHarness) -> None:
    log = Log()

    await run(make_harness, log, "in_the_loop", log.around)

    assert [what for what, _ in log.entries] == ["step"]


async def test_a_sync_job_is_wrapped(make_harness: MakeHarness) -> None:
    log = Log()

    @job
    def work() -> str:
        log.add("job")
        return "done"

    h = await make_harness([work], around_sync_steps=log.around)
    worked = await h.engine.start(work)
    async with h.engine.worker():
        assert await worked.result(timeout=30) == "done"

    assert [what for what, _ in log.entries] == ["enter", "job", "leave"]


async def test_a_wrapper_that_cannot_be_entered_fails_the_step(make_harness: MakeHarness) -> None:
    """The instance goes to `handle`; the worker and its other steps continue."""
    log = Log()
    first = True

    @contextmanager
    def around() -> Iterator[None]:
        nonlocal first
        if first:
            first = False
            raise OSError("no app context")
        yield

    assert await run(make_harness, log, "start", around) == "OSError: no app context"


async def test_an_error_that_a_wrapper_swallows_is_not_an_outcome(make_harness: MakeHarness) -> None:
    class Swallowing(AbstractContextManager[None]):
        def __exit__(self, *_: object) -> bool:
            return True

    told = await run(make_harness, Log(), "broken", Swallowing)

    assert told.startswith("InvalidOutcome: outcome: step 'broken' returned None")


def test_a_wrapper_that_cannot_be_called_is_refused_at_construction() -> None:
    with pytest.raises(DefinitionError, match="around_sync_steps: expected a function"):
        Engine("postgresql://localhost/x", around_sync_steps=5)  # type: ignore[arg-type]  # the point of the test
