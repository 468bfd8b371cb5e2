"""From an outcome to a commit: every outcome, exactly."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, InvalidInput, InvalidOutcome, Machine, Next, Retry, Stop, UnknownStep, job, step
from stepwell._core.commit import Commit, Placement, Values
from stepwell._core.instance import Claim
from stepwell._core.registry import define
from stepwell._core.status import Hold, Status
from stepwell._core.transition import failure_text, transition, unfit
from stepwell.errors import PayloadTooLarge
from tests.unit.claims import make_claim


class Order(Machine, version=2):
    @dataclass
    class State:
        count: int = 0

    @step
    async def start(self, ctx: Context[State]) -> Done:
        return Done()

    @step
    async def ship(self, ctx: Context[State]) -> Done:
        return Done()


ORDER = define(Order)
STORED = '{"count": 0}'


def commit_of(outcome: object, claim: Claim | None = None, *, state: Any = None, **options: Any) -> Commit:
    definition, stored = options.pop("definition", ORDER), options.pop("stored", STORED)
    return transition(
        outcome,
        claim=make_claim() if claim is None else claim,
        definition=definition,
        state=Order.State() if state is None else state,
        mark=None if stored is None else definition.state.mark(definition.state.decode(stored)),
        max_payload=options.pop("max_payload", 1_000),
        **options,
    )


def test_next_continues_at_the_step_now_with_attempt_zero() -> None:
    claim = make_claim(attempt=4)

    commit = commit_of(Next("ship"), claim)

    assert commit == Commit(claim=claim, status=Status.RUNNABLE, step="ship", version=2, attempt=0)


def test_next_takes_a_step_by_reference() -> None:
    """Scenario 8."""
    assert commit_of(Next(Order().ship)).step == "ship"
    assert commit_of(Next(Order.ship)).step == "ship"


def test_next_carries_delay_queue_priority_and_key() -> None:
    outcome = Next("ship", delay=timedelta(seconds=5), queue="slow", priority=-3, concurrency_key="a")

    commit = commit_of(outcome)

    assert commit == Commit(
        claim=make_claim(), status=Status.RUNNABLE, step="ship", version=2, attempt=0,
        placement=Placement(
            delay=timedelta(seconds=5), queue="slow", priority=-3, switches_key=True, concurrency_key="a"
        ),
    )  # fmt: skip


def test_next_keeps_the_concurrency_key_by_default_and_none_releases_it() -> None:
    claim = make_claim(concurrency_key="a")

    kept, given_up = commit_of(Next("ship"), claim), commit_of(Next("ship", concurrency_key=None), claim)

    assert (kept.placement.switches_key, kept.placement.concurrency_key) == (False, None)
    assert (given_up.placement.switches_key, given_up.placement.concurrency_key) == (True, None)


def test_retry_stays_at_the_step_with_one_attempt_more() -> None:
    claim = make_claim(step="ship", attempt=4)

    commit = commit_of(Retry(timedelta(seconds=9)), claim)

    assert commit == Commit(
        claim=claim, status=Status.RUNNABLE, step="ship", version=2, attempt=5,
        placement=Placement(delay=timedelta(seconds=9)), keeps_awaits=True,
    )  # fmt: skip


def test_retry_from_handle_stores_the_error_it_saw() -> None:
    error = ValueError("no luck")

    commit = commit_of(Retry(), error=error)

    assert commit.values.error == failure_text(error)
    assert json.loads(str(commit.values.error))["message"] == "no luck"


def test_next_and_done_from_handle_store_no_error() -> None:
    assert commit_of(Next("ship"), error=ValueError()).values.error is None
    assert commit_of(Done(), error=ValueError()).values.error is None


def test_done_ends_with_the_result() -> None:
    commit = commit_of(Done({"paid": True}))

    assert commit == Commit(
        claim=make_claim(), status=Status.DONE, step="start", version=2, attempt=0,
        values=Values(result='{"paid":true}'),
    )  # fmt: skip


def test_done_without_a_result_stores_nothing() -> None:
    commit = commit_of(Done())

    assert commit.values.result is None
    assert not commit.stores


def test_stop_with_text_fails_with_the_text() -> None:
    commit = commit_of(Stop("payment never came"))

    shown = {"type": "Stop", "message": "payment never came", "traceback": None}
    assert commit.status is Status.FAILED
    assert json.loads(str(commit.values.error)) == shown


def test_stop_with_an_exception_keeps_type_message_and_traceback() -> None:
    with pytest.raises(LookupError) as caught:
        raise LookupError("no such order")

    shown = json.loads(str(commit_of(Stop(caught.value)).values.error))

    assert (shown["type"], shown["message"]) == ("LookupError", "no such order")
    assert "test_stop_with_an_exception" in shown["traceback"]


def test_a_state_changed_in_place_is_committed() -> None:
    assert commit_of(Next("ship"), state=Order.State(3)).values.state == '{"count":3}'


def test_a_state_given_with_the_outcome_wins_over_the_one_in_the_context() -> None:
    assert commit_of(Next("ship", state=Order.State(5)), state=Order.State(3)).values.state == '{"count":5}'


def test_an_unchanged_state_is_not_written_even_if_its_text_differs() -> None:
    commit = commit_of(Next("ship"), stored='{"gone": 1,  "count":0}')

    assert commit.values.state is None
    assert not commit.stores


@pytest.mark.parametrize("outcome", [Done(), Stop("x"), Retry(), Next("ship")])
def test_an_upcast_state_is_written_even_if_the_step_left_it_unchanged(outcome: object) -> None:
    assert commit_of(outcome, stored=None).values.state == '{"count":0}'


@pytest.mark.parametrize("outcome", [Done(), Stop("x"), Retry()])
def test_every_outcome_commits_a_changed_state(outcome: object) -> None:
    assert commit_of(outcome, state=Order.State(8)).values.state == '{"count":8}'


def test_a_job_never_writes_its_arguments() -> None:
    @job
    def double(number: int) -> int:
        return number * 2

    definition = define(double)
    stored = definition.state.admit({"number": 4})

    commit = commit_of(Done(8), definition=definition, state=definition.state.decode(stored), stored=stored)

    assert (commit.values.state, commit.values.result) == (None, "8")


def test_an_earlier_error_is_cleared_by_the_next_commit() -> None:
    assert not commit_of(Next("ship"), make_claim(attempt=0)).stores
    assert commit_of(Next("ship"), make_claim(attempt=1)).stores


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "returned None"),
        (Done, "the class Done"),
        (("next", "ship"), "returned tuple"),
        (Order.State(), "returned Order.State"),
    ],
)
def test_a_value_that_is_not_an_outcome_is_refused_with_a_message(value: object, words: str) -> None:
    with pytest.raises(InvalidOutcome, match="step 'start'") as caught:
        commit_of(value)

    assert words.replace("Order.State", "State") in str(caught.value)


def test_an_unknown_step_is_refused_with_the_near_miss() -> None:
    with pytest.raises(UnknownStep, match="did you mean 'ship'"):
        commit_of(Next("shp"))


def test_a_reference_that_is_not_a_step_is_refused() -> None:
    with pytest.raises(InvalidOutcome, match="is not a step"):
        commit_of(Next(print))


@pytest.mark.parametrize(
    ("outcome", "field"),
    [
        (Next("ship", delay=timedelta(seconds=-1)), "delay"),
        (Next("ship", delay=5), "delay"),  # type: ignore[arg-type]
        (Next("ship", queue=""), "queue"),
        (Next("ship", priority=40_000), "priority"),
        (Next("ship", concurrency_key=""), "concurrency_key"),
        (Retry(timedelta(days=40_000)), "delay"),
        (Stop(5), "reason"),  # type: ignore[arg-type]
        (Done(float("nan")), "result"),
        (Done("x\x00"), "result"),
        (Done(object()), "result"),
    ],
)
def test_a_field_out_of_range_is_refused_by_name(outcome: object, field: str) -> None:
    """Scenario 7."""
    with pytest.raises(InvalidInput) as caught:
        commit_of(outcome)

    assert caught.value.field == field


def test_a_state_or_result_over_max_payload_is_refused_with_its_size() -> None:
    with pytest.raises(PayloadTooLarge, match="result") as result:
        commit_of(Done("x" * 999))
    with pytest.raises(PayloadTooLarge, match="state"):
        commit_of(Next("ship", state=Order.State(10**600)), max_payload=500)

    assert (result.value.size, result.value.limit) == (1_001, 1_000)


def test_a_row_put_on_hold_changes_nothing_but_the_hold() -> None:
    claim = make_claim(step="gone", attempt=2, version=1)

    commit = unfit(claim, "no step 'gone'")

    assert commit == Commit(
        claim=claim, status=Status.RUNNABLE, step="gone", version=1, attempt=2,
        placement=Placement(hold=Hold.UNFIT, hold_reason="no step 'gone'"), keeps_awaits=True,
    )  # fmt: skip
