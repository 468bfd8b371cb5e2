"""Commits on their way through a committer, each with the answer that something waits for."""

from __future__ import annotations

import msgspec

from stepwell._core.commit import Commit
from stepwell._worker.commit_queue import FIRST_PATIENCE, CommitFuture
from stepwell._worker.lost_replies import Verdict


class QueuedCommit(msgspec.Struct, eq=False, gc=False):
    """One commit on its way, and the future that waits for it."""

    commit: Commit
    answer: CommitFuture
    in_doubt: Commit | None  # what may have landed: an earlier try that ended without an answer
    length: int  # of its text
    is_repeated: bool = False  # both may have landed: the doubted one, and what was to be committed instead
    verdict: Verdict | None = None  # known; the future may not have it yet
    patience: float = FIRST_PATIENCE
    is_apart: bool = False  # it had to wait for a lock: no batch waits for it again
    is_resting: bool = False  # its row is locked by somebody else; it comes back by itself
    misfits: int = 0  # times that the server did not take it, and took another one of its shape

    @property
    def is_open(self) -> bool:
        """Whether it is still to be committed, now."""
        return self.verdict is None and not self.is_resting and not self.answer.done()


def mark_in_doubt(entry: QueuedCommit) -> None:
    """Note that this try has no answer."""
    entry.is_repeated = entry.in_doubt is not None and entry.in_doubt is not entry.commit
    entry.in_doubt = entry.in_doubt or entry.commit
