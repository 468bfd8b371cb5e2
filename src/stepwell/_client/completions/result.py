"""The result of a completion: a Completion, or the error that refuses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from stepwell._core.interaction import Completion
from stepwell._core.store_errors import Outage
from stepwell._store.operations.complete import Given, Verdict
from stepwell.errors import (
    CompletionConflict,
    CompletionRefused,
    CompletionTooLate,
    InteractionClosed,
    InvalidInput,
    InvalidReply,
    InvalidToken,
    ProjectionFailed,
)

FOREIGN = "the token is of another interaction, or of another deadline"

Result: TypeAlias = Completion | CompletionRefused | InvalidInput | Given | Outage
"""The result of a completion. A Given has none yet: another transaction locks its instance."""


def _completion(given: Given, *, is_duplicate: bool = False) -> Completion:
    found = given.found
    return Completion(found.id, found.instance_id, found.machine, found.step, is_duplicate)


def result_of(given: Given, verdict: Verdict | None) -> Completion | CompletionRefused | Given:
    """The result of a completion; the completion itself if its instance was locked."""
    if verdict is None:
        return given
    if verdict.verdict in ("admitted", "duplicate"):
        return _completion(given, is_duplicate=verdict.verdict == "duplicate")
    return _REFUSALS[verdict.verdict](given, verdict)


def _refuse_token(given: Given, _: Verdict) -> InvalidToken:
    return InvalidToken(given.found.id, "requires its token" if given.token is None else FOREIGN)


def _refuse_retired(given: Given, _: Verdict) -> InvalidToken:
    said = f"the token was signed with key {given.token_key!r}, which is retired; issue a new one, under another key"
    return InvalidToken(given.found.id, said)


def _refuse_type(given: Given, verdict: Verdict) -> InvalidReply | ProjectionFailed:
    field, _, problem = (verdict.problem or "reply: is of the wrong type").partition(": ")
    if field == "projector":
        return ProjectionFailed(given.found.id, problem)
    return InvalidReply(given.found.id, field, problem)


_REFUSALS: dict[str, Callable[[Given, Verdict], CompletionRefused]] = {
    "token": _refuse_token,
    "retired": _refuse_retired,
    "conflict": lambda given, _: CompletionConflict(given.found.id),
    "closed": lambda given, verdict: InteractionClosed(given.found.id, verdict.status),
    "late": lambda given, _: CompletionTooLate(given.found.id),
    "type": _refuse_type,
}
