"""What a row says about a commit whose answer was lost."""

from __future__ import annotations

from stepwell._core.commits import Commit
from stepwell._core.records import Claim
from stepwell._core.status import Status
from stepwell._store.instances import Trace


def is_ours(claim: Claim, trace: Trace | None) -> bool:
    """Whether the row, if there is one, is still the claim's."""
    return trace is not None and (trace.status, trace.worker_id, trace.fence) == (
        Status.EXECUTING, claim.worker_id, claim.fence,
    )  # fmt: skip


def goes_on(commit: Commit, trace: Trace) -> bool:
    """Whether a commit that was to go on has landed: nobody else executes a row under our id, one fence further."""
    claim = commit.continues_as
    return (
        commit.goes_on and trace.status is Status.EXECUTING and trace.worker_id == claim.worker_id
        and trace.fence == claim.fence
    )  # fmt: skip


def has_landed(commit: Commit, trace: Trace) -> bool:
    """Our commit raised the fence by one. A reaper does not raise it; a claim after a reap does, but executes."""
    grown = trace.fence - commit.claim.fence
    return grown >= 1 and not (grown == 1 and trace.status is Status.EXECUTING)
