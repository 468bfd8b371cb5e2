"""`Handle[Result]`: a job's result comes back as its type, and no other value is taken for one."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from stepwell import (
    Context,
    DefinitionError,
    Done,
    Engine,
    Handle,
    InvalidResult,
    Job,
    Machine,
    UnknownMachine,
    job,
    step,
)
from tests.conftest import MakeHarness

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


@dataclass
class Receipt:
    number: int
    at: datetime


@job
async def pay(number: int) -> Receipt:
    return Receipt(number, NOON)


@job
def look_at_the_clock() -> datetime:
    return NOON


@job
async def lie() -> list[Receipt]:
    return [{"number": "one", "at": NOON.isoformat()}]  # type: ignore[list-item]  # the point of the test


class Payment(Machine):
    @step
    async def start(self, ctx: Context[dict[str, Any]]) -> Done:
        return Done(Receipt(7, NOON))


ALL = [pay, look_at_the_clock, lie, Payment]


async def test_a_result_has_the_type_that_its_job_returns(make_harness: MakeHarness) -> None:
    """Typing: from start, start_many, signal_or_start, and from a handle made with the job; a machine's stays JSON."""
    h = await make_harness(ALL)
    by_id = await h.engine.start(pay, pay.args(1))
    [one] = await h.engine.start_many([pay.child({"number": 2})])
    assert isinstance(one, Handle)
    handles: list[Handle[Any]] = [
        by_id, one, await h.engine.signal_or_start(pay, {"number": 3}, key="p", signal="go"),
        await h.engine.start(look_at_the_clock), h.engine.handle(by_id.id, pay), h.engine.handle(by_id.id, "pay"),
        h.engine.handle(by_id.id), await h.engine.start(Payment),
    ]  # fmt: skip

    async with h.engine.worker():
        results = [await handle.result(timeout=30) for handle in handles]

    raw = {"number": 1, "at": "2026-07-01T12:00:00Z"}
    assert results == [
        Receipt(1, NOON), Receipt(2, NOON), Receipt(3, NOON), NOON, Receipt(1, NOON), Receipt(1, NOON), raw,
        {**raw, "number": 7},
    ]  # fmt: skip


async def test_a_result_of_another_machine_or_version_of_the_key_stays_untyped(make_harness: MakeHarness) -> None:
    """Typing: `if_exists="return"` may give the handle of an occupant of another job."""
    later: Job[..., Receipt] = Job(pay.function, name="pay", version=2)
    h = await make_harness([*ALL, later])
    machine = await h.engine.start(Payment, key="a")
    version = await h.engine.start(later, {"number": 2}, key="b")
    handles = [
        await h.engine.start(pay, {"number": 1}, key="a", if_exists="return"),
        await h.engine.start(pay, {"number": 1}, key="b", if_exists="return"),
        await h.engine.start(later, {"number": 1}, key="b", if_exists="return"),
    ]

    async with h.engine.worker():
        results: list[Any] = [await handle.result(timeout=30) for handle in handles]

    raw = {"number": 7, "at": "2026-07-01T12:00:00Z"}
    assert [handle.id for handle in handles] == [machine.id, version.id, version.id]
    assert results == [raw, {**raw, "number": 2}, Receipt(2, NOON)]


async def test_a_stored_result_that_does_not_fit_is_refused_with_job_and_path(make_harness: MakeHarness) -> None:
    """Typing: the instance is done, and its result can still be read untyped."""
    h = await make_harness(ALL)
    handle = await h.engine.start(lie)

    async with h.engine.worker():
        with pytest.raises(InvalidResult, match=r"lie #\d+ is done, .* result\[0\]\.number: expected int, got") as it:
            await handle.result(timeout=30)

    assert (it.value.id, it.value.job, it.value.field) == (handle.id, "lie", "result[0].number")
    assert (await handle.get()).result == [{"number": "one", "at": NOON.isoformat()}]


async def test_a_handle_of_an_unknown_job_is_refused(make_harness: MakeHarness) -> None:
    h = await make_harness([pay])

    with pytest.raises(UnknownMachine, match="'lie' is not registered"):
        h.engine.handle(1, lie)


def test_a_job_with_an_unstorable_result_type_is_refused_at_registration() -> None:
    @job
    def forgets_async() -> Awaitable[Receipt]:
        return pay(1)

    with pytest.raises(DefinitionError, match=r"job forgets_async: .*Awaitable.* write it as `async def`"):
        Engine("postgresql://localhost/nowhere", machines=[forgets_async])
