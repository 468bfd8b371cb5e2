"""What the marks in a row say about a commit with a lost reply."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from stepwell._core.commit import Commit
from stepwell._core.instance import Claim
from stepwell._core.status import Status
from stepwell._store.instances import Trace
from stepwell._worker.lost_replies import Verdict, judge

OURS, ANOTHERS = 1, 2
CLAIM = Claim(7, OURS, 10, "Walk", 1, "one", 0, 0, "", None, None, "default", datetime.now(UTC))
COMMITTED, STILL_CLAIMED, STALE, UNKNOWN = Verdict.COMMITTED, Verdict.STILL_CLAIMED, Verdict.STALE, Verdict.UNKNOWN
RUNNABLE, EXECUTING, CANCELLED = Status.RUNNABLE, Status.EXECUTING, Status.CANCELLED


def in_doubt(*, runs_ahead: bool) -> Commit:
    return Commit(claim=CLAIM, status=RUNNABLE, step="two", version=1, attempt=0, runs_ahead=runs_ahead)


@pytest.mark.parametrize(
    ("trace", "verdict"),
    [
        pytest.param(Trace(11, OURS, EXECUTING, 10, None), STILL_CLAIMED, id="landed and gone on"),
        pytest.param(Trace(11, None, RUNNABLE, 10, None), COMMITTED, id="landed and sent back"),
        pytest.param(Trace(11, None, RUNNABLE, 10, 11), COMMITTED, id="landed and gone on and reaped"),
        pytest.param(Trace(12, OURS, EXECUTING, 10, 11), COMMITTED, id="landed, reaped and claimed anew"),
        pytest.param(Trace(12, None, CANCELLED, 10, 11), COMMITTED, id="landed and cancelled"),
        pytest.param(Trace(13, None, RUNNABLE, 12, None), COMMITTED, id="landed, and the next claim too"),
        pytest.param(Trace(19, None, RUNNABLE, 18, 5), COMMITTED, id="landed, and all claims since"),
        pytest.param(Trace(11, OURS, EXECUTING, None, 10), STALE, id="reaped and claimed anew by the same worker"),
        pytest.param(Trace(11, ANOTHERS, EXECUTING, 8, 10), STALE, id="reaped and claimed by another"),
        pytest.param(Trace(12, None, RUNNABLE, 11, 10), STALE, id="reaped and committed by another"),
        pytest.param(Trace(14, None, RUNNABLE, 13, 10), STALE, id="reaped, and several have committed since"),
        pytest.param(Trace(11, None, CANCELLED, None, 10), STALE, id="cancelled"),
        pytest.param(Trace(13, None, RUNNABLE, 12, 10), STALE, id="restarted and committed"),
        pytest.param(Trace(14, None, RUNNABLE, 13, 12), UNKNOWN, id="a later claim was dropped, and one committed"),
        pytest.param(None, UNKNOWN, id="pruned"),
    ],
)
def test_a_commit_in_doubt_is_judged_by_the_marks_of_its_row(trace: Trace | None, verdict: Verdict) -> None:
    assert judge(in_doubt(runs_ahead=True), trace) is verdict
    assert judge(in_doubt(runs_ahead=False), trace) is (COMMITTED if verdict is STILL_CLAIMED else verdict)


def test_a_commit_that_was_sent_once_and_found_no_row_is_stale() -> None:
    assert judge(None, Trace(12, None, RUNNABLE, 10, None)) is STALE
