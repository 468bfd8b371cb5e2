"""Rules 7 and 25: an await that cannot be carried out is the author's error: to handle, nothing stored."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from stepwell import Await, Context, Done, InvalidInput, Machine, Outcome, step
from tests.conftest import MakeHarness

awaiting: Any = Await  # without its types: invalid values are the point
BAD: dict[str, tuple[Callable[[Any], Any], str]] = {
    "nothing": (lambda m: awaiting(then=m.start), "names: an await without names never ends; name at least one signal"),
    "empty name": (lambda m: awaiting("", then=m.start), "names: is empty"),
    "long name": (lambda m: awaiting("x" * 201, then=m.start), "names: has 201 characters, 200 are allowed"),
    "NUL": (lambda m: awaiting("a\x00", then=m.start), "names: has a NUL character"),
    "surrogate": (lambda m: awaiting("\ud800", then=m.start), "names: has a lone surrogate"),
    "a list": (lambda m: awaiting(["a", "b"], then=m.start), "names: expected a string, got ['a', 'b']"),
    "zero timeout": (lambda m: awaiting("a", then=m.start, timeout=timedelta(0)), "timeout: a timeout of zero"),
    "negative timeout": (lambda m: awaiting("a", then=m.start, timeout=-timedelta(1)), "timeout: -1 day, 0:00:00"),
    "long timeout": (lambda m: awaiting("a", then=m.start, timeout=timedelta(days=40_000)), "timeout: 40000 days"),
    "seconds": (lambda m: awaiting("a", then=m.start, timeout=5), "timeout: expected a timedelta, got 5"),
    "unknown step": (lambda m: awaiting("a", then="strat"), "has no step 'strat'; did you mean 'start'?"),
    "no step": (lambda m: awaiting("a", then=print), "then: <built-in function print> is not a step"),
    "bad state": (lambda m: awaiting("a", then=m.start, state=[1]), "state: expected dict"),
}


class Careless(Machine):
    """Returns the bad await that its state names; `handle` is done with the error that it received."""

    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        make, _ = BAD[ctx.state["bad"]]
        return make(self)  # type: ignore[no-any-return]

    async def handle(self, error: Exception, ctx: Context[Any]) -> Done:
        return Done([isinstance(error, InvalidInput), str(error)])


async def test_rule_25_an_invalid_await_goes_to_handle_with_the_field(make_harness: MakeHarness) -> None:
    """Rules 7 and 25, Scenario 7: await on nothing, a timeout of 0 and their like are refused, and go to handle."""
    h = await make_harness([Careless])
    handles = {bad: await h.engine.start(Careless, {"bad": bad}) for bad in BAD}

    async with h.engine.worker():
        told = {bad: await handle.result(30) for bad, handle in handles.items()}

    wrong = {bad: message for bad, (is_input, message) in told.items() if not is_input or BAD[bad][1] not in message}
    assert wrong == {}
