"""What running and claiming know of the committer: where outcomes are submitted, and how many wait."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from stepwell._core.commit import Commit
from stepwell._store.operations.commit_result import CommitResult
from stepwell._worker.lost_replies import Verdict

AT_ONCE = 32  # steps that start, or continue, before the loop turns to other tasks: so a commit never waits for all
MOST_UNCOMMITTED = 2_000  # outcomes that may wait for their commit before claiming pauses
FIRST_PATIENCE = 0.005  # seconds until a commit is tried again whose row another transaction has locked
LONGEST_PATIENCE = 0.1


class CommitFuture(Protocol):
    """What receives the verdict on a commit: a future, or an object that stands for one."""

    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def cancel(self) -> object: ...
    def set_result(self, result: Verdict, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class CommitQueue(Protocol):
    """A committer."""

    @property
    def waiting(self) -> int: ...
    @property
    def is_over_budget(self) -> bool: ...
    def submit(self, commit: Commit, *, in_doubt: Commit | None = None) -> asyncio.Future[Verdict]: ...
    def take_over(self, commit: Commit, answer: CommitFuture) -> None: ...


class PublishesCommits(Protocol):
    """Publishes what a transactional step has committed itself."""

    def committed(self, commits: Sequence[Commit], result: CommitResult) -> None: ...
    def stale(self, commit: Commit) -> None: ...
