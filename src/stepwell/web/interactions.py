"""Questions over HTTP: which ones are wanted, and how they look; names are those of the contract with the world."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.datastructures import QueryParams

from stepwell._core.interactions import Completion, Interaction, InteractionStatus, epoch_ms
from stepwell.config import DIGITS
from stepwell.interactions import LARGEST_PAGE
from stepwell.web.problems import Problem


class PendingQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of `GET /interactions/pending`."""

    assignee: str | None = None
    group: str | None = None
    machine: str | None = None
    step: str | None = None
    transport: str | None = None
    overdue: bool | None = None
    limit: int = 50
    cursor: str | None = None


def read_query(params: QueryParams) -> PendingQuery:
    """Filters as a URL has them; a blank name is none."""
    given: dict[str, Any] = {}
    for name, text in params.multi_items():
        if name not in PendingQuery.__struct_fields__:
            raise _malformed(name, f"is unknown (known: {', '.join(PendingQuery.__struct_fields__)})")
        if name in given:
            raise _malformed(name, "is there twice")
        given[name] = _value(name, text)
    return PendingQuery(**{name: value for name, value in given.items() if value is not None})


def _value(name: str, text: str) -> str | int | bool | None:
    match name:
        case "limit":
            if not DIGITS.fullmatch(text) or not 1 <= int(text) <= LARGEST_PAGE:
                raise _malformed(name, f"expected a whole number from 1 to {LARGEST_PAGE}, got {text!r:.100}")
            return int(text)
        case "overdue":
            if text not in ("true", "false"):
                raise _malformed(name, f"expected true or false, got {text!r}")
            return text == "true"
        case _:
            return text.strip() or None


def show_completion(completion: Completion) -> dict[str, Any]:
    """An answer that was admitted."""
    return {
        "interactionId": completion.interaction_id,
        "executionId": str(completion.instance_id),
        "stepId": f"{completion.machine}.{completion.step}",
        "status": InteractionStatus.COMPLETED.value,
        "duplicate": completion.is_duplicate,
    }


def show_interaction(question: Interaction) -> dict[str, Any]:
    """One question, whole. Its token is not shown: who reads may not answer by that."""
    return {
        "interactionId": question.id,
        "correlationId": question.correlation_id,
        "tenantId": question.tenant,
        "executionId": str(question.instance_id),
        "machine": question.machine,
        "version": question.version,
        "step": question.step,
        "stepId": f"{question.machine}.{question.step}",
        "itemIndex": question.index,
        "status": question.status.value,
        "requestPayload": question.request,
        "outputType": question.reply_type,
        "outputSchema": question.reply_schema,
        "responsePayload": question.reply,
        "actor": question.actor,
        "assignee": question.assignee,
        "group": question.group,
        "requiresToken": question.requires_token,
        "idempotencyKey": question.idempotency_key,
        "transportType": question.transport,
        "transportMetadata": question.metadata,
        "attempts": question.attempts,
        "error": question.error,
        "overdue": question.is_overdue,
        "deadlineEpochMs": epoch_ms(question.deadline),
        "createdAtEpochMs": epoch_ms(question.created_at),
        "dispatchedAtEpochMs": epoch_ms(question.dispatched_at),
        "finishedAtEpochMs": epoch_ms(question.finished_at),
    }


def _malformed(name: str, problem: str) -> Problem:
    return Problem(400, "malformed", f"{name}: {problem}", field=name)
