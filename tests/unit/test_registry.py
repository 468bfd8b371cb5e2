"""The machines and jobs a process knows."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import (
    Cancel,
    Context,
    DefinitionError,
    Done,
    InvalidInput,
    InvalidState,
    Machine,
    Retry,
    Stop,
    UnknownMachine,
    UnknownStep,
    job,
    step,
)
from stepwell._core.registry import Registry, define
from stepwell.job import STEP


def version_of(number: int, *, upcasts: bool = False) -> type[Machine]:
    class Order(Machine, version=number):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            return Done(number)

    if upcasts:
        Order.upcast = lambda self, state, step, from_version: (state, step)  # type: ignore[attr-defined]
    return Order


@job(max_attempts=3)
async def add(left: int, right: int = 2) -> int:
    return left + right


def test_definitions_are_listed_by_name_and_version() -> None:
    registry = Registry([add, version_of(2), version_of(1)])

    assert registry.labels() == ["Order@1", "Order@2", "add@1"]


def test_two_of_one_name_and_version_are_refused() -> None:
    with pytest.raises(DefinitionError, match="two machines are called 'Order' version 1"):
        Registry([version_of(1), version_of(1)])


@pytest.mark.parametrize("thing", ["Order", object(), dict, Machine, None])
def test_a_value_that_is_neither_machine_nor_job_is_refused(thing: object) -> None:
    with pytest.raises(DefinitionError, match="neither a Machine class nor a job"):
        Registry([thing])


def test_a_machine_that_needs_arguments_is_refused_with_what_to_do() -> None:
    class Order(Machine):
        def __init__(self, mailer: object) -> None:
            self.mailer = mailer

        @step
        async def start(self, ctx: Context[Any]) -> Done:
            return Done()

    with pytest.raises(DefinitionError, match=r"Engine\(resources="):
        Registry([Order])


def test_a_class_resolves_to_its_version_and_a_name_to_the_newest() -> None:
    first, second = version_of(1), version_of(2)
    registry = Registry([first, second])

    assert registry.resolve(first).version == 1
    assert registry.resolve("Order").version == 2


def test_an_unknown_machine_is_refused_with_the_near_miss() -> None:
    with pytest.raises(UnknownMachine, match=r"'Ordr' is not registered; .*did you mean 'Order'\?"):
        Registry([version_of(1)]).resolve("Ordr")


def test_an_unknown_machine_without_a_near_miss_lists_what_there_is() -> None:
    with pytest.raises(UnknownMachine, match=r"\(registered: Order\)"):
        Registry([version_of(1)]).resolve("Parcel")


def test_a_version_that_is_not_registered_is_unknown() -> None:
    """Scenario 164."""
    with pytest.raises(UnknownMachine):
        Registry([version_of(1)]).resolve(version_of(2))


def test_an_invalid_start_is_refused_with_its_field() -> None:
    with pytest.raises(InvalidInput, match="expected a Machine class, a job or a name") as caught:
        Registry([]).resolve(42)

    assert caught.value.field == "machine"


def test_the_successor_is_the_newest_later_version_that_upcasts() -> None:
    registry = Registry([version_of(1), version_of(3, upcasts=True), version_of(4, upcasts=True), version_of(5)])

    successor = registry.successor("Order", 2)

    assert successor is not None
    assert successor.version == 4
    assert registry.successor("Order", 4) is None
    assert registry.successor("Parcel", 1) is None


def test_an_unknown_step_is_refused_with_the_near_miss() -> None:
    definition = define(version_of(1))

    with pytest.raises(UnknownStep, match="machine 'Order' has no step 'strt'; did you mean 'start'"):
        definition.step("strt")


def test_a_jobs_arguments_are_typed_by_its_signature() -> None:
    definition = define(add)

    assert definition.state.admit({"left": 1}) == '{"left":1,"right":2}'
    for wrong in ({"left": "one"}, {}, {"left": 1, "rihgt": 3}):
        with pytest.raises(InvalidState, match="args"):
            definition.state.admit(wrong)


async def test_a_jobs_step_calls_the_function_and_is_done_with_its_value() -> None:
    definition = define(add)
    ctx = context(definition.state.decode('{"left":1,"right":5}'))

    outcome = await definition.steps[STEP].function(definition.owner.object, ctx)

    assert outcome == Done(6)


def test_rule_10_a_job_retries_until_its_last_attempt() -> None:
    """Rule 10: an exception retries with backoff(attempt), until max_attempts."""
    handle = define(add).owner.handle
    error = ValueError()

    outcomes = [handle(error, context(None, attempt)) for attempt in range(3)]

    assert outcomes == [Retry(add.backoff(0)), Retry(add.backoff(1)), Stop(error)]


@pytest.mark.parametrize("error", [Cancel("enough"), InvalidInput("result", "cannot be stored")])
def test_rule_10_cancel_and_an_unstorable_result_fail_at_once(error: Exception) -> None:
    """Rule 10: Cancel fails at once; so does a result that no attempt could store."""
    assert define(add).owner.handle(error, context(None)) == Stop(error)


def context(state: Any, attempt: int = 0) -> Context[Any]:
    return Context(
        id=1, key=None, tenant="", machine="add", version=1, step=STEP, attempt=attempt, fence=1, state=state
    )
