"""Encodes batches for the statements: as a JSON array without defaults, or as texts joined by a separator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

import msgspec

from stepwell._core.commit import NOW, Commit
from stepwell._core.status import Hold, Status

SEPARATOR = "\x1e"  # JSON escapes it in every string
_BRACES = str.maketrans("[]", "{}")
_ENCODER = msgspec.json.Encoder()


def encode_commits(commits: Iterable[Commit]) -> str:
    """The argument of instances/commit."""
    return _ENCODER.encode([_outcome(commit) for commit in commits]).decode()


def encode_simple(commits: Sequence[Commit]) -> tuple[str, ...] | None:
    """Arguments of instances/commit_fast, in its order: ids, fences, statuses, steps, states, results. None if a text
    contains the separator."""
    claims = [commit.claim for commit in commits]
    steps = joined([commit.step for commit in commits])
    states = joined([commit.values.state or "" for commit in commits])
    results = joined([commit.values.result or "" for commit in commits])
    if steps is None or states is None or results is None:
        return None
    return (
        numbers([claim.id for claim in claims]),
        numbers([claim.fence for claim in claims]),
        f"{{{','.join([Status.EXECUTING if commit.runs_ahead else commit.status for commit in commits])}}}",
        steps,
        states,
        results,
    )


def text_length(commit: Commit) -> int:
    """Characters of the large values: state, result, error and request."""
    asks, values = commit.park.asks, commit.values
    asked = 0 if asks is None or asks.interaction is None else len(asks.interaction.request)
    return len(values.state or "") + len(values.result or "") + len(values.error or "") + asked


def joined(texts: Sequence[str]) -> str | None:
    """The texts as one text, which the statement splits; None if a text contains the separator. JSON escapes it, but an
    author's msgspec.Raw may contain it, and would shift the texts of other rows."""
    text = SEPARATOR.join(texts)
    return text if text.count(SEPARATOR) == len(texts) - 1 else None


def numbers(given: Sequence[int]) -> str:
    """Numbers as the text of a Postgres array; passing a list to the driver takes ten times as long."""
    return str([*given]).translate(_BRACES)


class _Outcome(msgspec.Struct, omit_defaults=True):
    """One commit as instances/commit reads it, without defaults."""

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
    claim, placement, park, values = c.claim, c.placement, c.park, c.values
    return _Outcome(
        claim.id, claim.worker_id, claim.fence, Status.EXECUTING if c.runs_ahead else c.status, c.step, c.version,
        c.attempt, placement.delay, placement.queue, placement.priority, placement.switches_key,
        placement.concurrency_key, placement.hold, placement.hold_reason,
        c.stores, _raw(values.state), _raw(values.result), _raw(values.error), c.keeps_awaits, park.awaits,
        park.timeout, None if park.children is None else len(park.children),
        None if placement.needs is None else placement.needs.fields, None if park.asks is None else park.asks.shape,
    )  # fmt: skip


def _raw(text: str | None) -> msgspec.Raw | None:
    return None if text is None else msgspec.Raw(text)
