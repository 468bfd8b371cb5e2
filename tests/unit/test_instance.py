"""What a snapshot says about why nothing happens."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from stepwell import Hold, Instance, Status
from tests.unit.claims import make_claim

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def snapshot(**changes: Any) -> Instance:
    fields: dict[str, Any] = {
        "id": 1, "tenant": "", "key": None, "machine": "Order", "version": 1, "step": "start",
        "status": Status.RUNNABLE, "hold": None, "hold_reason": None, "attempt": 0, "crashes": 0, "fence": 0,
        "queue": "default", "priority": 0, "concurrency_key": None, "worker_id": None, "due_at": NOON,
        "deadline": None, "awaits": (), "parent_id": None, "children_pending": 0, "created_at": NOON,
        "updated_at": NOON, "finished_at": None, "state": {}, "result": None, "error": None,
    }  # fmt: skip
    return Instance(**{**fields, **changes})


@pytest.mark.parametrize("status", [Status.RUNNABLE, Status.EXECUTING, Status.DONE, Status.FAILED, Status.CANCELLED])
def test_a_running_runnable_or_ended_instance_waits_for_nothing(status: Status) -> None:
    assert snapshot(status=status).waiting_for is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hold": Hold.DUE}, "its time, 2026-01-01T12:00:00+00:00"),
        ({"hold": Hold.KEY, "concurrency_key": "acct:7"}, "concurrency key 'acct:7', which another instance holds"),
        ({"hold": Hold.VERSION, "hold_reason": "no live worker registers Order version 1"},
         "no live worker registers Order version 1"),
        ({"hold": Hold.UNFIT, "hold_reason": "no step 'gone'"}, "no step 'gone'"),
        ({"status": Status.AWAITING_SIGNAL, "awaits": ("paid", "refused")}, "signal 'paid' or 'refused'"),
        ({"status": Status.AWAITING_CHILDREN, "children_pending": 3}, "3 children"),
        ({"status": Status.AWAITING_EXTERNAL, "asked_over": "manual", "answers_pending": 1}, "a reply over 'manual'"),
    ],
)  # fmt: skip
def test_a_held_or_parked_instance_says_what_it_waits_for(changes: dict[str, Any], words: str) -> None:
    assert snapshot(**changes).waiting_for == words


def test_only_ends_are_terminal_and_parked_counts_as_settled() -> None:
    assert {s for s in Status if s.is_terminal} == {Status.DONE, Status.FAILED, Status.CANCELLED}
    assert {s for s in Status if not s.is_settled} == {Status.RUNNABLE, Status.EXECUTING}


@pytest.mark.parametrize(("crashes", "suspect"), [(0, False), (1, False), (2, True), (9, True)])
def test_rule_8_a_claim_is_a_crash_suspect_from_the_second_crash_on(crashes: int, suspect: bool) -> None:
    """Rule 8: from the second crash on it is a suspect."""
    assert make_claim(crashes=crashes).is_suspect is suspect


def test_a_claim_is_labelled_by_machine_step_and_id() -> None:
    assert make_claim().label == "Order.start #7"
