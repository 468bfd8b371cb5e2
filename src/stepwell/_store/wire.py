"""Commits as their statements read them: one JSON array, in which what is at its default is left out; or bare texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

import msgspec

from stepwell._core.commits import NOW, Commit
from stepwell._core.status import Hold, Status

SEPARATOR = "\x1e"  # JSON escapes it wherever it may stand
_BRACES = str.maketrans("[]", "{}")
_ENCODER = msgspec.json.Encoder()


def encode_commits(commits: Iterable[Commit]) -> str:
    """What the commit statement is sent."""
    return _ENCODER.encode([_outcome(commit) for commit in commits]).decode()


def encode_bare(commits: Sequence[Commit]) -> tuple[str, ...] | None:
    """What the statement for bare commits is sent after the worker: ids, fences, statuses, steps, states, results. None
    if a separator stands where none can be told from it."""
    claims = [commit.claim for commit in commits]
    steps = joined([commit.step for commit in commits])
    states = joined([commit.state or "" for commit in commits])
    results = joined([commit.result or "" for commit in commits])
    if steps is None or states is None or results is None:
        return None
    return (
        numbers([claim.id for claim in claims]),
        numbers([claim.fence for claim in claims]),
        f"{{{','.join([Status.EXECUTING if commit.goes_on else commit.status for commit in commits])}}}",
        steps,
        states,
        results,
    )


def joined(texts: Sequence[str]) -> str | None:
    """Texts as one, which the statement takes apart; None if a separator stands in one of them. JSON escapes it, but an
    author can hand over JSON that nobody has written (msgspec.Raw): it would shift what belongs to others."""
    text = SEPARATOR.join(texts)
    return text if text.count(SEPARATOR) == len(texts) - 1 else None


def numbers(given: Sequence[int]) -> str:
    """Numbers as Postgres reads an array of them. The driver would take ten times as long for an array."""
    return str([*given]).translate(_BRACES)


class _Outcome(msgspec.Struct, omit_defaults=True):
    """One commit as the statement reads it; what is at its default is left out."""

    id: int
    worker_id: int
    fence: int
    status: Status
    step: str
    version: int
    attempt: int = 0
    delay: timedelta = NOW
    queue: str | None = None
    priority: int | None = None
    switches_key: bool = False
    concurrency_key: str | None = None
    hold: Hold | None = None
    hold_reason: str | None = None
    stores: bool = False
    state: msgspec.Raw | None = None
    result: msgspec.Raw | None = None
    error: msgspec.Raw | None = None
    keeps_awaits: bool = False
    awaits: tuple[str, ...] | None = None
    timeout: timedelta | None = None
    spawns: int | None = None
    needs: tuple[str | None, str | None, str | None, int] | None = None
    asks: str | None = None


def _outcome(c: Commit) -> _Outcome:
    claim = c.claim
    return _Outcome(
        claim.id, claim.worker_id, claim.fence, Status.EXECUTING if c.goes_on else c.status, c.step, c.version,
        c.attempt, c.delay, c.queue, c.priority, c.switches_key, c.concurrency_key, c.hold, c.hold_reason,
        c.stores, _raw(c.state), _raw(c.result), _raw(c.error), c.keeps_awaits, c.awaits, c.timeout,
        None if c.children is None else len(c.children), None if c.needs is None else c.needs.fields,
        None if c.asks is None else c.asks.shape,
    )  # fmt: skip


def _raw(text: str | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text)
