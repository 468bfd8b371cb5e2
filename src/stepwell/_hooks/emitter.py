"""Creates events for hooked callbacks. Without callbacks, each call only checks an empty set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from msgspec.structs import replace

from stepwell._core.commit import Commit
from stepwell._core.instance import AtStep
from stepwell._core.serialization.codec import decode_value
from stepwell._core.start_request import NewInstance
from stepwell._core.status import Hold, Status
from stepwell._hooks.runner import Hooks
from stepwell._store.instances import Reaped
from stepwell._store.limits import Held
from stepwell._store.operations.commit_result import CommitResult
from stepwell._store.operations.encoding import text_length
from stepwell._store.operations.start import Started
from stepwell.events import Event, EventName, OutcomeName


class Emitter:
    """One per engine; its client and workers report what has become durable."""

    def __init__(self, hooks: Hooks, large: int) -> None:
        self.hooks = hooks
        self._large = large  # characters; more than this make a "large" event

    def started(self, entries: Sequence[NewInstance], rows: Sequence[object]) -> None:
        """Instances were stored; a row that is not Started is a duplicate."""
        if self.hooks.wanted & {"started", "large"}:
            pairs = zip(entries, rows, strict=True)
            self._put_starts([(entry, row, None) for entry, row in pairs if isinstance(row, Started)])

    def committed(self, commits: Mapping[int, Commit], result: CommitResult) -> None:
        """Outcomes are durable, with the children of their spawns."""
        wanted = self.hooks.wanted
        if not wanted:
            return
        outcomes = [
            (commits[row.id], row.status, row.queue)
            for row in result.committed
            if wanted & {"committed", "large"} or row.status is Status.FAILED
        ]
        self._put_outcomes(outcomes, datetime.now(UTC))
        if wanted & {"started", "large"} and result.spawned is not None:
            entries, rows = result.spawned
            children = [(entries[row.position], row) for row in rows]
            self._put_starts([(entry, row, commit.claim.id) for (commit, _, entry), row in children])

    def as_sent(self, commits: Sequence[Commit]) -> None:
        """Simple outcomes are durable, exactly as sent."""
        if self.hooks.wanted & {"committed", "large"}:
            outcomes = [(c, Status.EXECUTING if c.runs_ahead else c.status, c.claim.queue) for c in commits]
            self._put_outcomes(outcomes, datetime.now(UTC))

    def applied(self, commit: Commit) -> None:
        """An outcome is durable, but the reply to its commit was lost: the ids of its children are unknown."""
        if self.hooks.wanted:
            self._put_outcomes([(commit, commit.status, commit.placement.queue)], datetime.now(UTC))

    def stale(self, commit: Commit) -> None:
        """An outcome was dropped as stale."""
        if "stale" in self.hooks.wanted:
            self.hooks.put([commit], lambda dropped: _outcome("stale", dropped, None, None, datetime.now(UTC)))

    def reaped(self, rows: Sequence[Reaped]) -> None:
        """Rows were taken from dead workers; some of them may have failed."""
        wanted = self.hooks.wanted
        if not wanted:
            return
        now = datetime.now(UTC)
        if "reaped" in wanted:
            self.hooks.put(rows, lambda row: _reap("reaped", row, now))
        if "failed" in wanted:
            self.hooks.put([row for row in rows if row.failure is not None], lambda row: _reap("failed", row, now))

    def waits(self, queue: str, rows: Sequence[Held]) -> None:
        """Rows were put on hold by a limit."""
        if rows and "limit_wait" in self.hooks.wanted:
            now = datetime.now(UTC)
            self.hooks.put(rows, lambda row: _at_step("limit_wait", row, queue, Status.RUNNABLE, now))

    def _put_starts(self, starts: Sequence[tuple[NewInstance, Started, int | None]]) -> None:
        now = datetime.now(UTC)
        if "started" in self.hooks.wanted:
            self.hooks.put(starts, lambda one: _start("started", *one, now))
        if "large" in self.hooks.wanted:
            large = [one for one in starts if len(one[0].state) > self._large]
            self.hooks.put(large, lambda one: replace(_start("large", *one, now), size=len(one[0].state)))

    def _put_outcomes(self, outcomes: Sequence[tuple[Commit, Status, str | None]], now: datetime) -> None:
        # a row put on hold as unfit has not run
        ran = [one for one in outcomes if one[0].placement.hold is not Hold.UNFIT]
        if "committed" in self.hooks.wanted:
            self.hooks.put(ran, lambda one: _outcome("committed", *one, now))
        if "failed" in self.hooks.wanted:
            ended = [one for one in ran if one[1] is Status.FAILED]
            self.hooks.put(ended, lambda one: _outcome("failed", *one, now))
        if "large" in self.hooks.wanted:
            large = [one for one in ran if text_length(one[0]) > self._large]
            self.hooks.put(large, lambda one: replace(_outcome("large", *one, now), size=text_length(one[0])))


def _start(name: EventName, entry: NewInstance, row: Started, parent_id: int | None, now: datetime) -> Event:
    return Event(
        name=name, at=now, id=row.id, key=entry.key, tenant=entry.tenant, machine=entry.machine,
        version=entry.version, step=entry.step, queue=row.queue, attempt=0, status=Status.RUNNABLE,
        parent_id=parent_id,
    )  # fmt: skip


def _outcome(name: EventName, commit: Commit, status: Status | None, queue: str | None, now: datetime) -> Event:
    claim = commit.claim
    error = {} if commit.values.error is None else decode_value(commit.values.error)
    has_next = status is not None and not status.is_terminal
    return Event(
        name=name, at=now, id=claim.id, key=claim.key, tenant=claim.tenant, machine=claim.machine,
        version=commit.version, step=claim.step, queue=queue or claim.queue, attempt=claim.attempt, status=status,
        outcome=_outcome_name(commit), next_step=commit.step if has_next else None, error_type=error.get("type"),
        error_message=error.get("message"), worker_id=claim.worker_id, parent_id=claim.parent_id,
    )  # fmt: skip


def _outcome_name(commit: Commit) -> OutcomeName:
    match commit.status:
        case Status.DONE:
            return "Done"
        case Status.FAILED:
            return "Stop"
        case Status.AWAITING_SIGNAL:
            return "Await"
        case Status.AWAITING_EXTERNAL:
            return "Ask"
        case _ if commit.park.children is not None:
            return "Spawn"
        case _:
            return "Retry" if commit.keeps_awaits else "Next"


def _reap(name: EventName, row: Reaped, now: datetime) -> Event:
    event = _at_step(name, row, row.queue, row.status, now)
    return replace(
        event, worker_id=row.worker_id, error_type=None if row.failure is None else "CrashLoop",
        error_message=row.failure,
    )  # fmt: skip


def _at_step(name: EventName, row: AtStep, queue: str, status: Status, now: datetime) -> Event:
    return Event(
        name=name, at=now, id=row.id, key=row.key, tenant=row.tenant, machine=row.machine, version=row.version,
        step=row.step, queue=queue, attempt=row.attempt, status=status, parent_id=row.parent_id,
    )  # fmt: skip
