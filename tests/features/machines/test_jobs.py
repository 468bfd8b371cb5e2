"""Rule 10: jobs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Cancel, Context, InstanceFailed, InvalidInput, InvalidState, Job, Status, job
from tests.conftest import MakeHarness
from tests.support.waiting import held


@dataclass
class Address:
    street: str
    number: int


@job
async def add(left: int, right: int = 2) -> int:
    return left + right


@job
def label(to: Address, ctx: Context[Any], copies: int = 1) -> dict[str, Any]:
    return {"to": f"{to.street} {to.number}", "copies": copies, "attempt": ctx.attempt, "id": ctx.id}


@job(max_attempts=3, backoff=lambda _: timedelta(0))
async def hopeless(log: str = "") -> None:
    raise ConnectionError("nobody there")


@job
async def giving_up() -> None:
    raise Cancel("the customer has gone")


@job(backoff=lambda _: timedelta(0))
async def unstorable() -> object:
    return object()


async def test_rule_10_the_return_value_is_the_result(make_harness: MakeHarness) -> None:
    """Rule 10: return value = result, of async and sync jobs, with arguments in either form. Scenarios 147, 148."""
    h = await make_harness([add, label])
    handles = [
        await h.engine.start(add, {"left": 1}),
        await h.engine.start(add, add.args(1, right=5)),
        await h.engine.start("add", {"left": 40}),
        await h.engine.start(label, label.args(Address("Elm", 7))),  # type: ignore[call-arg]
    ]

    async with h.engine.worker():
        results = [await handle.result(timeout=30) for handle in handles]

    assert results == [3, 6, 42, {"to": "Elm 7", "copies": 1, "attempt": 0, "id": handles[3].id}]


async def test_rule_10_an_exception_retries_until_max_attempts(make_harness: MakeHarness) -> None:
    """Rule 10: an exception retries until max_attempts; then it fails with the last error. Scenarios 14, 150, 152."""
    h = await make_harness([hopeless])
    handle = await h.engine.start(hopeless)

    async with h.engine.worker() as worker:
        with pytest.raises(InstanceFailed, match="ConnectionError: nobody there"):
            await handle.result(timeout=30)

    assert (worker.stats.steps, (await handle.get()).attempt) == (3, 2)


async def test_rule_10_a_retry_waits_for_its_backoff(make_harness: MakeHarness) -> None:
    """Rule 10: retries with backoff(attempt); the default gives 1 s after the first failure, then 2 s. Scenario 149."""

    @job
    async def flaky(ctx: Context[Any]) -> int:
        if ctx.attempt < 2:
            raise ConnectionError
        return ctx.attempt

    h = await make_harness([flaky])
    handle = await h.engine.start(flaky)
    waits = []
    async with h.engine.worker():
        for attempt in (1, 2):
            waiting = await held(handle, attempt=attempt)
            waits.append(waiting.due_at - waiting.updated_at)
            await h.advance(timedelta(seconds=10))
        result = await handle.result(timeout=30)

    assert (waits, result) == ([timedelta(seconds=1), timedelta(seconds=2)], 2)


async def test_rule_10_cancel_fails_at_once(make_harness: MakeHarness) -> None:
    """Rule 10: Cancel fails at once. Scenario 151."""
    h = await make_harness([giving_up])
    handle = await h.engine.start(giving_up)

    async with h.engine.worker() as worker:
        with pytest.raises(InstanceFailed, match="Cancel: the customer has gone"):
            await handle.result(timeout=30)

    assert worker.stats.steps == 1


async def test_rule_10_a_result_that_cannot_be_stored_fails_at_once(make_harness: MakeHarness) -> None:
    """Rule 10: no attempt would store it, and each would repeat the effects. Scenario 152."""
    h = await make_harness([unstorable])
    handle = await h.engine.start(unstorable)

    async with h.engine.worker() as worker:
        ended = await handle.wait(timeout=30)

    assert ended.error is not None
    assert (ended.status, worker.stats.steps) == (Status.FAILED, 1)
    assert ended.error.message.startswith("result: ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"left": "one"}, r"args\.left: expected int, got str"),
        ({}, "required field 'left' is missing"),
        ({"left": 1, "rigth": 2}, "right"),
        ([1, 2], "args: expected .* or a mapping, got list"),
    ],
)
async def test_rule_10_arguments_are_checked_at_start(
    make_harness: MakeHarness, arguments: Any, words: str
) -> None:
    """Rule 10: arguments are typed by the function's signature and checked at start; nothing is stored."""
    h = await make_harness([add])

    with pytest.raises(InvalidState, match=words):
        await h.engine.start(add, arguments)

    assert (await h.engine.insights.list()).items == []


async def test_rule_10_arguments_of_another_job_are_refused(make_harness: MakeHarness) -> None:
    """Rule 10: arguments belong to their job."""
    h = await make_harness([add, hopeless])

    with pytest.raises(InvalidInput, match="arguments of job 'hopeless', not of 'add'"):
        await h.engine.start(add, hopeless.args("x"))


async def test_rule_10_a_backoff_that_is_no_delay_fails_the_job(make_harness: MakeHarness) -> None:
    """Rule 10: a backoff written wrongly ends in a clear failure, not in a loop."""

    async def failing() -> None:
        raise ConnectionError("first")

    wrong = Job(failing, backoff=lambda _: 5)  # type: ignore[arg-type,return-value]
    h = await make_harness([wrong])
    handle = await h.engine.start(wrong)
    async with h.engine.worker():
        with pytest.raises(InstanceFailed, match="delay: expected a timedelta, got 5"):
            await handle.result(timeout=30)

