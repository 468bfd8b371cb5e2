"""Rule 7: any error in a step goes to `handle`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from stepwell import Context, Done, InvalidOutcome, Machine, Next, Retry, Status, Stop, UnknownStep, step
from tests.conftest import MakeHarness


def failing_with(make_error: Callable[[], BaseException], *, is_async: bool = True) -> type[Machine]:
    """A machine with a step that raises, and a `handle` that is done with what it saw."""

    class Failing(Machine):
        if is_async:

            @step
            async def start(self, ctx: Context[Any]) -> Done:
                raise make_error()
        else:

            @step
            def start(self, ctx: Context[Any]) -> Done:
                raise make_error()

        async def handle(self, error: BaseException, ctx: Context[Any]) -> Done:
            cause = error.__cause__ or error
            return Done([type(error).__name__, type(cause).__name__, str(error)])

    return Failing


async def test_rule_7_handle_receives_the_raised_error_and_returns_any_outcome(make_harness: MakeHarness) -> None:
    """Rule 7: an exception goes to handle(error, ctx), which returns any outcome. Scenario 14."""

    class Order(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            raise LookupError("no such order")

        @step
        async def saved(self, ctx: Context[Any]) -> Done:
            return Done("saved")

        async def handle(self, error: BaseException, ctx: Context[Any]) -> Next | Retry:
            assert isinstance(error, LookupError)
            assert str(error) == "no such order"
            return Retry() if ctx.attempt < 2 else Next(self.saved)

    h = await make_harness([Order])
    order = await h.engine.start(Order)
    async with h.engine.worker() as worker:
        result = await order.result(timeout=30)

    assert (result, worker.stats.steps) == ("saved", 4)


async def test_rule_7_a_sync_handle_works_the_same(make_harness: MakeHarness) -> None:
    """Rule 7: handle may be a plain function; it runs in a thread."""

    class Order(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            raise LookupError("no such order")

        def handle(self, error: BaseException, ctx: Context[Any]) -> Done:  # type: ignore[override]
            with pytest.raises(RuntimeError, match="no running event loop"):
                asyncio.get_running_loop()
            return Done(str(error))

    h = await make_harness([Order])
    order = await h.engine.start(Order)
    async with h.engine.worker():
        assert await order.result(timeout=30) == "no such order"


async def test_rule_7_by_default_the_instance_fails_with_the_error(make_harness: MakeHarness) -> None:
    """Rule 7: handle by default returns Stop(error). Scenario 13."""

    class Order(Machine):
        @step
        def start(self, ctx: Context[Any]) -> Done:
            raise LookupError("no such order")

    h = await make_harness([Order])
    order = await h.engine.start(Order)
    async with h.engine.worker():
        ended = await order.wait(timeout=30)

    assert ended.error is not None
    assert (ended.status, ended.error.type, ended.error.message) == (Status.FAILED, "LookupError", "no such order")
    assert 'raise LookupError("no such order")' in str(ended.error.traceback)


@pytest.mark.parametrize("is_async", [True, False])
async def test_rule_7_a_handle_that_raises_fails_the_instance_with_that_error(
    make_harness: MakeHarness, is_async: bool
) -> None:
    """Rule 7: if handle raises, the instance fails with that error; the first one is in its traceback. Scenario 15."""

    class Order(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            raise LookupError("the first")

        if is_async:

            async def handle(self, error: BaseException, ctx: Context[Any]) -> Stop:
                raise ArithmeticError("the second")
        else:

            def handle(self, error: BaseException, ctx: Context[Any]) -> Stop:  # type: ignore[override]
                raise ArithmeticError("the second")

    h = await make_harness([Order])
    order = await h.engine.start(Order)
    async with h.engine.worker():
        ended = await order.wait(timeout=30)

    assert ended.error is not None
    assert (ended.error.type, ended.error.message) == ("ArithmeticError", "the second")
    assert "the first" in str(ended.error.traceback)


async def test_rule_7_handle_sees_the_state_as_it_was_loaded(make_harness: MakeHarness) -> None:
    """Rule 7: a step that raises has its changes dropped; what handle changes is committed."""

    class Order(Machine):
        @dataclass
        class State:
            tries: int = 0
            items: list[str] | None = None

        @step
        async def start(self, ctx: Context[State]) -> Done:
            ctx.state.tries += 10
            ctx.state.items = ["half", "done"]
            if ctx.attempt == 0:
                raise ValueError
            return Done(ctx.state.tries)

        async def handle(self, error: BaseException, ctx: Context[State]) -> Retry:
            assert ctx.state == Order.State(5, None)
            ctx.state.tries += 1
            return Retry()

    h = await make_harness([Order])
    order = await h.engine.start(Order, {"tries": 5})
    async with h.engine.worker():
        assert await order.result(timeout=30) == 16


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError("mine"), GeneratorExit()])
@pytest.mark.parametrize("is_async", [True, False])
async def test_rule_7_a_base_exception_of_the_author_goes_to_handle(
    make_harness: MakeHarness, error: BaseException, is_async: bool
) -> None:
    """Rule 7: a BaseException from a step other than our own cancellation is handled like an error. Scenario 16."""
    machine = failing_with(lambda: error, is_async=is_async)
    h = await make_harness([machine])
    handle = await h.engine.start(machine)

    async with h.engine.worker():
        seen, _, _ = await handle.result(timeout=30)

    assert seen == type(error).__name__


@pytest.mark.parametrize("is_async", [True, False])
async def test_rule_7_a_stop_iteration_goes_to_handle(make_harness: MakeHarness, is_async: bool) -> None:
    """Rule 7: also the one error that no coroutine and no future can raise unchanged."""
    machine = failing_with(lambda: StopIteration("over"), is_async=is_async)
    h = await make_harness([machine])
    handle = await h.engine.start(machine)

    async with h.engine.worker():
        _, cause, _ = await handle.result(timeout=30)

    assert cause == "StopIteration"


class NoOutcome(Machine):
    """Returns, at each of its steps, something that is no outcome."""

    @step
    async def nothing(self, ctx: Context[Any]) -> None:
        return None

    @step
    def a_class(self, ctx: Context[Any]) -> type:
        return Done

    @step
    async def a_tuple(self, ctx: Context[Any]) -> tuple[str, str]:
        return ("next", "ship")

    @step
    def a_coroutine(self, ctx: Context[Any]) -> Any:
        return self.nothing(ctx)

    @step
    async def start(self, ctx: Context[Any]) -> Next:
        return Next("strat")

    async def handle(self, error: BaseException, ctx: Context[Any]) -> Done:
        assert isinstance(error, InvalidOutcome | UnknownStep)
        return Done(str(error))


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("nothing", "outcome: step 'nothing' returned None; return Next, Retry, Await, Spawn, Ask, Done or Stop"),
        ("a_class", "outcome: step 'a_class' returned the class Done; return an object of it, as in Done()"),
        ("a_tuple", "step 'a_tuple' returned tuple, which is not an outcome"),
        ("a_coroutine", "step 'a_coroutine' returned coroutine, which is not an outcome"),
        ("start", "machine 'NoOutcome' has no step 'strat'; did you mean 'start'?"),
    ],
)
async def test_rule_7_a_value_that_is_no_outcome_goes_to_handle(
    make_harness: MakeHarness, at: str, message: str
) -> None:
    """Rule 7: an unknown step or a value that is no outcome is the author's error: it goes to handle. Scenario 7."""
    h = await make_harness([NoOutcome])
    handle = await h.engine.start(NoOutcome, step=at)

    async with h.engine.worker():
        assert message in await handle.result(timeout=30)


async def test_rule_7_a_handle_that_returns_no_outcome_fails_the_instance(make_harness: MakeHarness) -> None:
    """Rule 7: the same for handle itself; there is no third call."""

    class Order(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            raise ValueError("first")

        async def handle(self, error: BaseException, ctx: Context[Any]) -> Any:
            return "sorry"

    h = await make_harness([Order])
    order = await h.engine.start(Order)
    async with h.engine.worker():
        ended = await order.wait(timeout=30)

    assert ended.error is not None
    assert (ended.error.type, "returned str" in ended.error.message) == ("InvalidOutcome", True)
