"""The queue between running and committing: the executor adds outcomes, a committer takes them in batches."""

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

AT_ONCE = 32  # steps that start or continue before other tasks run, so that a commit never waits for all of them
MOST_UNCOMMITTED = 2_000  # uncommitted outcomes beyond which claiming pauses
LARGEST_BATCH = 1_000
LARGEST_TEXT = 16_000_000  # characters of states, results and errors in one batch
FIRST_PATIENCE = 0.005  # seconds until a commit is retried after another transaction had locked its row
LONGEST_PATIENCE = 0.1
MOST_DELAYS = 2  # the server or the network may have caused the first one


class CommitFuture(Protocol):
    """Receives the verdict on a commit: a future, or an object with its methods."""

    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def cancel(self) -> object: ...
    def set_result(self, result: Verdict, /) -> None: ...
    def set_exception(self, exception: BaseException, /) -> None: ...


class PublishesCommits(Protocol):
    """Publishes the commits of transactional steps."""

    def committed(self, commits: Sequence[Commit], result: CommitResult) -> None: ...
    def stale(self, commit: Commit) -> None: ...


class QueuedCommit(msgspec.Struct, eq=False, gc=False):
    """One commit in the queue, and the future for its verdict."""

    commit: Commit
    future: CommitFuture
    in_doubt: Commit | None  # an earlier try without a reply, which may have been applied
    length: int  # of its text
    is_apart: bool  # committed outside the batches: it inserts many children, waited for a lock, or took too long
    is_repeated: bool = False  # the commit in doubt and its replacement may both have been applied
    verdict: Verdict | None = None  # set before the future receives it
    patience: float = FIRST_PATIENCE
    is_resting: bool = False  # its row was locked; a timer puts it back into the queue
    delays: int = 0  # number of statements with it that took too long
    misfits: int = 0  # times that the server refused it but accepted another one of its shape

    @property
    def is_open(self) -> bool:
        """Whether it still has to be committed, and may be now."""
        return self.verdict is None and not self.is_resting and not self.future.done()

    @property
    def is_slow(self) -> bool:
        """Whether it may itself be slow: then it is committed apart, with a longer timeout."""
        return self.delays >= MOST_DELAYS

    def note_outage(self, error: BaseException) -> None:
        """If the error is an outage, note that this try got no reply."""
        if isinstance(error, Outage):
            self.is_repeated = self.in_doubt is not None and self.in_doubt is not self.commit
            self.in_doubt = self.in_doubt or self.commit
        if isinstance(error, Overdue):
            self.delays += 1
            self.is_apart |= self.is_slow


class CommitQueue:
    """The outcomes queued for one committer, oldest first."""

    def __init__(self, committer: Service, most_rows: int) -> None:
        self._committer = committer
        self._most_rows = most_rows
        self.pending: list[QueuedCommit] = []
        self.in_flight = 0  # outcomes in the current tick of the committer
        self._text = 0  # characters of the pending outcomes; retries are not counted
        self._is_closed = False

    @property
    def waiting(self) -> int:
        """Outcomes that are submitted and not yet durable; at least MOST_UNCOMMITTED while their texts exceed two
        batches."""
        waiting = len(self.pending) + self.in_flight
        return max(waiting, MOST_UNCOMMITTED) if self._text > 2 * LARGEST_TEXT else waiting

    def submit(self, commit: Commit, *, in_doubt: Commit | None = None) -> asyncio.Future[Verdict]:
        """Commit an outcome; the future raises RefusedByDatabase if Postgres refuses it.

        `in_doubt` is an earlier commit without a reply: this outcome replaces it, unless it was applied.
        """
        future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self.put(commit, future, in_doubt)
        return future

    def put(self, commit: Commit, future: CommitFuture, in_doubt: Commit | None = None) -> None:
        """Commit an outcome; `future` receives its verdict."""
        if self._is_closed:
            raise asyncio.CancelledError
        length = text_length(commit)
        is_apart = commit.park.children is not None and commit.commits_alone
        self.pending.append(QueuedCommit(commit, future, in_doubt, length, is_apart))
        self._text += length
        if not self._committer.woken:
            self._committer.wake()

    def take(self) -> list[QueuedCommit]:
        """Take the outcomes for the next statement: as many as fit, at most one per row."""
        batch = [entry for entry in self._first_that_fit() if not entry.future.cancelled()]
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
        """Keep a row's second outcome for a later batch; the reply to its first one was lost. In one statement, the
        consequences of the first outcome would be written again, after the second had changed the row."""
        first: dict[int, QueuedCommit] = {}
        for entry in batch:
            first.setdefault(entry.commit.claim.id, entry)
        self.pending = [entry for entry in batch if first[entry.commit.claim.id] is not entry] + self.pending
        return list(first.values())

    def put_back(self, entries: list[QueuedCommit], error: BaseException) -> None:
        """Put entries back at the front: an outage loses no outcome."""
        for entry in entries:
            entry.note_outage(error)
        self.pending = entries + self.pending

    def put_back_later(self, entry: QueuedCommit) -> None:
        """Retry an entry after a pause: another transaction has locked its row, and no batch waits for the lock."""
        pause, entry.patience = entry.patience, min(entry.patience * 2, LONGEST_PATIENCE)
        entry.is_resting = True

        def put_back() -> None:
            entry.is_resting = False
            if self._is_closed:
                entry.future.cancel()
                return
            self.pending.append(entry)
            self._committer.wake()

        asyncio.get_running_loop().call_later(pause, put_back)

    def close(self) -> None:
        """Cancel the futures of uncommitted outcomes, and accept no more."""
        self._is_closed = True
        for entry in self.pending:
            entry.future.cancel()
        self.pending = []  # entries refer to the executor, and the garbage collector does not track them


def set_verdicts(entries: list[QueuedCommit]) -> None:
    """Set the verdicts of these entries in their futures, AT_ONCE per turn of the loop."""
    for entry in entries[:AT_ONCE]:
        try:
            if not entry.future.done():
                entry.future.set_result(entry.verdict or COMMITTED)
        except Exception:  # the other futures still get their verdicts
            log.exception("committer: %s: could not report its verdict", entry.commit.claim.label)
    if len(entries) > AT_ONCE:
        asyncio.get_running_loop().call_soon(set_verdicts, entries[AT_ONCE:])
