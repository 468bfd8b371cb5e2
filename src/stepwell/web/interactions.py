"""Interactions over HTTP: the filters of a list, and their JSON, with the names of the contract."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.datastructures import QueryParams

from stepwell._client.admin.interactions import LARGEST_PAGE, Page
from stepwell._client.completions.offload import LARGE
from stepwell._core.interaction import Completion, Interaction, InteractionStatus, epoch_ms
from stepwell.config import DIGITS
from stepwell.web.problems import Problem, write_json


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
    """The filters in a URL; a blank value is none."""
    given: dict[str, Any] = {}
    for name, text in params.multi_items():
        if name not in PendingQuery.__struct_fields__:
            raise _malformed(name, f"is unknown (known: {', '.join(PendingQuery.__struct_fields__)})")
        if name in given:
            raise _malformed(name, "is given twice")
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
    """An admitted completion."""
    return {
        "interactionId": completion.interaction_id,
        "executionId": str(completion.instance_id),
        "stepId": f"{completion.machine}.{completion.step}",
        "status": InteractionStatus.COMPLETED.value,
        "duplicate": completion.is_duplicate,
    }


def show_interaction(interaction: Interaction) -> dict[str, Any]:
    """One interaction, without its token: the right to read is not the right to complete."""
    return {
        "interactionId": interaction.id,
        "correlationId": interaction.correlation_id,
        "tenantId": interaction.tenant,
        "executionId": str(interaction.instance_id),
        "machine": interaction.machine,
        "version": interaction.version,
        "step": interaction.step,
        "stepId": f"{interaction.machine}.{interaction.step}",
        "itemIndex": interaction.index,
        "status": interaction.status.value,
        "requestPayload": interaction.request,
        "outputType": interaction.reply_type,
        "outputSchema": interaction.reply_schema,
        "responsePayload": interaction.reply,
        "actor": interaction.actor,
        "assignee": interaction.assignee,
        "group": interaction.group,
        "requiresToken": interaction.requires_token,
        "idempotencyKey": interaction.idempotency_key,
        "transportType": interaction.transport,
        "transportMetadata": interaction.metadata,
        "attempts": interaction.attempts,
        "error": interaction.error,
        "overdue": interaction.is_overdue,
        "deadlineEpochMs": epoch_ms(interaction.deadline),
        "createdAtEpochMs": epoch_ms(interaction.created_at),
        "dispatchedAtEpochMs": epoch_ms(interaction.dispatched_at),
        "finishedAtEpochMs": epoch_ms(interaction.finished_at),
    }


async def write_page(page: Page) -> str:
    """A page as JSON. The loop is free after each large interaction."""
    written = []
    for interaction in page.items:
        written.append(write_json(show_interaction(interaction)))
        if len(written[-1]) >= LARGE:
            await asyncio.sleep(0)
    return f'{{"interactions":[{",".join(written)}],"cursor":{write_json(page.cursor)}}}'


def _malformed(name: str, problem: str) -> Problem:
    return Problem(400, "malformed", f"{name}: {problem}", field=name)
