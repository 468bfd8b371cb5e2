"""How a machine is declared, and what is refused at its definition."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, DefinitionError, Done, Machine, step
from stepwell.machine import step_name
from stepwell.outcomes import Entry


def declare(**options: Any) -> type[Machine]:
    class Order(Machine, **options):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            return Done()

        @step
        def ship(self, ctx: Context[Any]) -> Done:
            return Done()

    return Order


def test_a_machine_has_its_class_name_and_plain_defaults() -> None:
    order = declare()

    assert (order.name, order.version, order.queue, order.initial) == ("Order", 1, "default", "start")
    assert order.state_type is None


def test_options_of_the_class_are_applied() -> None:
    order = declare(name="order", version=4, queue="checkout", initial="ship", state=dict)

    assert (order.name, order.version, order.queue, order.initial) == ("order", 4, "checkout", "ship")
    assert order.state_type is dict


def test_a_nested_state_class_is_used() -> None:
    class Order(Machine):
        @dataclass
        class State:
            count: int = 0

        @step
        async def start(self, ctx: Context[State]) -> Done:
            return Done()

    assert Order.state_type is Order.State


def test_steps_know_whether_they_are_async_and_their_timeouts() -> None:
    class Order(Machine):
        @step(timeout=timedelta(seconds=3))
        async def start(self, ctx: Context[Any]) -> Done:
            return Done()

        @step
        def ship(self, ctx: Context[Any]) -> Done:
            return Done()

    assert (Order.steps["start"].is_async, Order.steps["start"].timeout) == (True, timedelta(seconds=3))
    assert (Order.steps["ship"].is_async, Order.steps["ship"].timeout) == (False, None)


def test_steps_are_inherited_and_overridden() -> None:
    class Base(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            return Done("base")

        @step
        async def ship(self, ctx: Context[Any]) -> Done:
            return Done()

    class Order(Base):
        @step
        def start(self, ctx: Context[Any]) -> Done:  # type: ignore[override]
            return Done("order")

    assert set(Order.steps) == {"start", "ship"}
    assert Order.steps["start"].function is Order.start
    assert Base.steps["start"].is_async


def test_a_step_stays_a_plain_method() -> None:
    order = declare()()

    assert order.ship(None) == Done()  # type: ignore[attr-defined]
    assert step_name(order.ship) == step_name("ship") == "ship"  # type: ignore[attr-defined]
    assert step_name(print) is None


def test_a_child_is_a_start_with_its_options() -> None:
    order = declare()

    assert order.child({"a": 1}, priority=5) == Entry(order, {"a": 1}, {"priority": 5})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": ""}, "name is empty"),
        ({"name": 5}, "name must be a string"),
        ({"name": "a@b"}, "'@'"),
        ({"name": "x" * 201}, "201 characters"),
        ({"name": "a\x00b"}, "does not print"),
        ({"queue": ""}, "queue is empty"),
        ({"queue": "a\nb"}, "does not print"),
        ({"version": 0}, "version must be a whole number from 1"),
        ({"version": True}, "version must be a whole number from 1"),
        ({"version": "2"}, "version must be a whole number from 1"),
        ({"version": 2**31}, "version must be a whole number from 1"),
        ({"initial": "begin"}, "no initial step 'begin'; name one of ship, start"),
        ({"initial": 3}, "initial must be a string"),
        ({"retries": 3}, "unknown option 'retries'"),
    ],
)
def test_an_invalid_machine_is_refused_at_its_definition(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DefinitionError, match="machine Order") as caught:
        declare(**options)

    assert words in str(caught.value)


def test_a_machine_without_steps_is_refused() -> None:
    """Scenario 154."""
    with pytest.raises(DefinitionError, match="has no steps; mark its methods with @step"):

        class Empty(Machine):
            pass


def test_a_second_name_for_a_step_is_refused() -> None:
    with pytest.raises(DefinitionError, match="'send' is another name for step 'start'"):

        class Order(Machine):
            @step
            async def start(self, ctx: Context[Any]) -> Done:
                return Done()

            send = start


def test_a_step_that_yields_is_refused() -> None:
    with pytest.raises(DefinitionError, match="'plain' is a generator"):

        @step
        def plain(self: Any, ctx: Any) -> Any:
            yield

    with pytest.raises(DefinitionError, match="'coroutine' is a generator"):

        @step
        async def coroutine(self: Any, ctx: Any) -> Any:
            yield


def test_a_step_mark_on_something_other_than_a_method_is_refused() -> None:
    with pytest.raises(DefinitionError, match="goes on a method"):
        step(staticmethod(print))  # type: ignore[type-var]


@pytest.mark.parametrize("timeout", [5, timedelta(0), timedelta(seconds=-1), timedelta(days=366)])
def test_a_timeout_out_of_range_is_refused(timeout: Any) -> None:
    with pytest.raises(DefinitionError, match="timeout"):
        step(timeout=timeout)
