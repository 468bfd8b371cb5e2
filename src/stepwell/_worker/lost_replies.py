"""What a row says about a commit without a reply."""

from __future__ import annotations

from enum import Enum

from stepwell._core.commit import Commit
from stepwell._core.instance import Claim
from stepwell._core.status import Status
from stepwell._store.instances import Trace


class Verdict(Enum):
    """How a commit ended."""

    COMMITTED = "committed"
    GOES_ON = "goes on"  # committed, and the row is still claimed here
    STALE = "stale"  # the claim no longer held; nothing of the outcome is visible
    UNKNOWN = "unknown"  # its reply was lost, and the row no longer shows whether it was committed


COMMITTED, GOES_ON = Verdict.COMMITTED, Verdict.GOES_ON  # a member is five times slower to read from the class


def is_ours(claim: Claim, trace: Trace | None) -> bool:
    """Whether there is a row, and the claim still holds it."""
    return trace is not None and (trace.status, trace.worker_id, trace.fence) == (
        Status.EXECUTING, claim.worker_id, claim.fence,
    )  # fmt: skip


def judge(in_doubt: Commit | None, trace: Trace | None) -> Verdict:
    """The verdict on a commit if its claim no longer has its row; `in_doubt` is an earlier try without a reply.

    A commit leaves its claim's fence in the row, and all else that ends a claim leaves it elsewhere. The next claim
    after a commit skips one fence, so a mark of the next fence is of a claim that followed a lost one.
    """
    if in_doubt is None:
        return Verdict.STALE
    if trace is None:  # pruned
        return Verdict.UNKNOWN
    fence, committed, dropped = in_doubt.claim.fence, trace.committed_fence or 0, trace.dropped_fence or 0
    if committed == fence:
        goes_on = in_doubt.goes_on and is_ours(in_doubt.continues_as, trace)
        return Verdict.GOES_ON if goes_on else Verdict.COMMITTED
    if committed <= fence + 1 or dropped == fence:
        return Verdict.STALE
    return Verdict.COMMITTED if dropped < fence else Verdict.UNKNOWN
