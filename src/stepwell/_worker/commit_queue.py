"""The queue between running and committing: executors put outcomes into it, a committer takes them in batches."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

import msgspec

from stepwell._core.commit import Commit
from stepwell._core.store_errors import Outage, Overdue
from stepwell._process.service import Service
from stepwell._store.operations.commit_result import CommitResult
from stepwell._store.operations.encoding import text_length
from stepwell._worker.lost_replies import COMMITTED, Verdict

log = logging.getLogger("stepwell")

AT_ONCE = 32  # steps that start, or continue, before the loop turns to other tasks: so a commit never waits for all
MOST_UNCOMMITTED = 2_000  # outcomes that may wait for their commit before claiming pauses
LARGEST_BATCH = 1_000
LARGEST_TEXT = 16_000_000  # characters of states, results and errors in one batch
FIRST_PATIENCE = 0.005  # seconds until a commit is tried again because another transaction has locked its row
LONGEST_PATIENCE = 0.1
MOST_DELAYS = 2  # the first one may be a slow server's, or the network's


class CommitFuture(Protocol):
    """What receives the verdict on a commit: a future, or an object that stands for one."""

    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def cancel(self) -> object: ...
    def set_result(self, result: Verdict, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class PublishesCommits(Protocol):
    """Publishes what a transactional step has committed itself."""

    def committed(self, commits: Sequence[Commit], result: CommitResult) -> None: ...
    def stale(self, commit: Commit) -> None: ...


class QueuedCommit(msgspec.Struct, eq=False, gc=False):
    """One commit on its way, and the future that waits for it."""

    commit: Commit
    answer: CommitFuture
    in_doubt: Commit | None  # what may have been applied: an earlier try that ended without a reply
    length: int  # of its text
    is_apart: bool  # no batch waits for it: it inserts many children, had to wait for a lock, or took too long
    is_repeated: bool = False  # both may have been applied: the one in doubt, and its replacement
    verdict: Verdict | None = None  # known; the future may not have it yet
    patience: float = FIRST_PATIENCE
    is_resting: bool = False  # another transaction has locked its row; a timer puts it back
    delays: int = 0  # times that a statement with it took too long
    misfits: int = 0  # times that the server refused it, and accepted another one of its shape

    @property
    def is_open(self) -> bool:
        """Whether it is still to be committed, now."""
        return self.verdict is None and not self.is_resting and not self.answer.done()

    @property
    def is_slow(self) -> bool:
        """Whether it may be what takes long: then it is committed apart, and has longer."""
        return self.delays >= MOST_DELAYS

    def note_outage(self, error: BaseException) -> None:
        """Note that there was no reply to this try, if the error is an outage."""
        if isinstance(error, Outage):
            self.is_repeated = self.in_doubt is not None and self.in_doubt is not self.commit
            self.in_doubt = self.in_doubt or self.commit
        if isinstance(error, Overdue):
            self.delays += 1
            self.is_apart |= self.is_slow


class CommitQueue:
    """The outcomes that wait for one committer, oldest first."""

    def __init__(self, committer: Service, most_rows: int) -> None:
        self._committer = committer
        self._most_rows = most_rows
        self.pending: list[QueuedCommit] = []
        self.in_flight = 0  # outcomes that the current tick of the committer has taken
        self._text = 0  # characters of what is pending; retries are not counted
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """Outcomes that are submitted and not yet durable; at least MOST_UNCOMMITTED while their texts are more than
        two commits take."""
        waiting = len(self.pending) + self.in_flight
        return max(waiting, MOST_UNCOMMITTED) if self._text > 2 * LARGEST_TEXT else waiting

    def submit(self, commit: Commit, *, in_doubt: Commit | None = None) -> asyncio.Future[Verdict]:
        """Commit an outcome; the future raises RefusedByDatabase if Postgres refuses it.

        `in_doubt` is an earlier commit without a reply: this outcome replaces it, unless that one was applied.
        """
        answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self.put(commit, answer, in_doubt)
        return answer

    def put(self, commit: Commit, answer: CommitFuture, in_doubt: Commit | None = None) -> None:
        """Commit an outcome, and tell `answer` its verdict."""
        if self._is_closed:
            raise asyncio.CancelledError
        length = text_length(commit)
        is_apart = commit.park.children is not None and commit.commits_alone
        self.pending.append(QueuedCommit(commit, answer, in_doubt, length, is_apart))
        self._text += length
        if not self._committer.woken:
            self._committer.wake()

    def take(self) -> list[QueuedCommit]:
        """Take the outcomes of the next statement: as many as fit, and one per row at most."""
        batch = [entry for entry in self._first_that_fit() if not entry.answer.cancelled()]
        if len({entry.commit.claim.id for entry in batch}) < len(batch):
            batch = self._one_per_row(batch)
        return batch

    def _first_that_fit(self) -> list[QueuedCommit]:
        """The first outcomes that fit into one statement; each child of a spawn counts as a row."""
        batch, text, rows = self.pending[:LARGEST_BATCH], 0, 0
        for number, entry in enumerate(batch):
            children = entry.commit.park.children
            rows += 1 if children is None else len(children)
            if (text + entry.length > LARGEST_TEXT or rows > self._most_rows) and number:
                batch = batch[:number]
                break
            text += entry.length
        self.pending = self.pending[len(batch) :]
        self._text = max(self._text - text, 0) if self.pending else 0
        return batch

    def _one_per_row(self, batch: list[QueuedCommit]) -> list[QueuedCommit]:
        """Keep a row's next outcome for later while the reply to the one before it is lost: in one statement, the
        consequences of the first would be written again on what the second has left of the row."""
        first: dict[int, QueuedCommit] = {}
        for entry in batch:
            first.setdefault(entry.commit.claim.id, entry)
        self.pending = [entry for entry in batch if first[entry.commit.claim.id] is not entry] + self.pending
        return list(first.values())

    def put_back(self, entries: list[QueuedCommit], error: BaseException) -> None:
        """Put entries back first: an outage loses no outcome."""
        for entry in entries:
            entry.note_outage(error)
        self.pending = entries + self.pending

    def put_back_later(self, entry: QueuedCommit) -> None:
        """Try an entry again soon: another transaction has locked its row, and no batch waits for it."""
        pause, entry.patience = entry.patience, min(entry.patience * 2, LONGEST_PATIENCE)
        entry.is_resting = True

        def again() -> None:
            entry.is_resting = False
            if self._is_closed:
                entry.answer.cancel()
                return
            self.pending.append(entry)
            self._committer.wake()

        asyncio.get_running_loop().call_later(pause, again)

    def close(self) -> None:
        """Cancel the futures of outcomes that are not committed, and take no more outcomes."""
        self._is_closed = True
        for entry in self.pending:
            entry.answer.cancel()
        self.pending = []  # an entry refers to the executor, and the garbage collector does not see it


def tell(entries: list[QueuedCommit]) -> None:
    """Tell the futures of these entries their verdicts, some at a time."""
    for entry in entries[:AT_ONCE]:
        try:
            if not entry.answer.done():
                entry.answer.set_result(entry.verdict or COMMITTED)
        except Exception:  # the other futures are told all the same
            log.exception("committer: %s: its verdict could not be told", entry.commit.claim.label)
    if len(entries) > AT_ONCE:
        asyncio.get_running_loop().call_soon(tell, entries[AT_ONCE:])
