"""Decides from a row whether a commit without a reply was applied."""

from __future__ import annotations

from enum import Enum

from stepwell._core.commit import Commit
from stepwell._core.instance import Claim
from stepwell._core.status import Status
from stepwell._store.instances import Trace


class Verdict(Enum):
    """How a commit ended."""

    COMMITTED = "committed"
    STILL_CLAIMED = "still claimed"  # committed, and this worker still has the row (run ahead)
    STALE = "stale"  # the claim no longer held; nothing of the outcome is visible
    UNKNOWN = "unknown"  # its reply was lost, and the row no longer shows whether it was committed


COMMITTED, STILL_CLAIMED = Verdict.COMMITTED, Verdict.STILL_CLAIMED  # reading a member from the class is slower


def is_ours(claim: Claim, trace: Trace | None) -> bool:
    """Whether the row exists, and the claim still holds it."""
    return trace is not None and (trace.status, trace.worker_id, trace.fence) == (
        Status.EXECUTING, claim.worker_id, claim.fence,
    )  # fmt: skip


def judge(in_doubt: Commit | None, trace: Trace | None) -> Verdict:
    """The verdict on a commit that its claim can no longer write; `in_doubt` is an earlier try without a reply.

    A commit writes its claim's fence to `committed_fence`; any other end of a claim writes it to `dropped_fence`. The
    claim after a commit skips one fence, so the next fence in a mark belongs to a claim that followed a lost one.
    """
    if in_doubt is None:
        return Verdict.STALE
    if trace is None:  # pruned
        return Verdict.UNKNOWN
    fence, committed, dropped = in_doubt.claim.fence, trace.committed_fence or 0, trace.dropped_fence or 0
    if committed == fence:
        is_held = in_doubt.runs_ahead and is_ours(in_doubt.continues_as, trace)
        return Verdict.STILL_CLAIMED if is_held else Verdict.COMMITTED
    if committed <= fence + 1 or dropped == fence:
        return Verdict.STALE
    return Verdict.COMMITTED if dropped < fence else Verdict.UNKNOWN
