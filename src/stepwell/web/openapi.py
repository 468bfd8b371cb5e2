"""The OpenAPI document of the application; a test sends what it allows and compares what it promises."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from stepwell._client.admin.interactions import LARGEST_PAGE
from stepwell._core.interaction import InteractionStatus
from stepwell.config import MAX_NAME
from stepwell.web.problems import MEDIA_TYPE, TITLES

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_MAYBE_TEXT: Schema = {"type": ["string", "null"]}
_ANY: Schema = {"description": "any JSON value"}
_WHEN: Schema = {"type": ["integer", "null"], "description": "milliseconds since 1970-01-01 UTC"}
_STATUS: Schema = {"type": "string", "enum": [status.value for status in InteractionStatus]}


def describe(root: str, max_body: int, *, allow_resume_tokens: bool) -> Schema:
    """The document of an application that is mounted at `root`."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Stepwell completions",
            "version": version("stepwell"),
            "description": "How external systems complete the interactions of durable machines.",
        },
        "servers": [{"url": root or "/"}],
        "paths": {
            "/interactions/complete": {"post": _complete(max_body, allow_resume_tokens)},
            "/interactions/pending": {"get": _pending()},
            "/interactions/{interactionId}": {"get": _show()},
            "/openapi.json": {"get": _document()},
        },
        "components": {
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
            "schemas": {
                "Answer": _COMPLETION, "Admitted": _ADMITTED, "Interaction": _INTERACTION, "Page": _PAGE,
                "Problem": _PROBLEM,
            },
        },
    }  # fmt: skip


def _complete(max_body: int, allow_resume_tokens: bool) -> Schema:
    return {
        "operationId": "complete",
        "summary": "Complete an interaction",
        "description": "Named by its id, its correlation id or its signed token; if by several, they have to be of "
        "the same one. The same completion again is a success, marked as duplicate. A refused one changes nothing.",
        "security": [{"bearer": []}, {}] if allow_resume_tokens else [{"bearer": []}],
        "requestBody": {
            "required": True,
            "description": f"at most {max_body:,} bytes",
            "content": {"application/json": {"schema": _ref("Answer")}},
        },
        "responses": {
            "200": _json("Admitted", "admitted, now or before"),
            **_problems({
                400: "the body is not JSON, or has a field that is unknown, missing, double or of another type",
                401: "no known credentials, or an invalid token",
                403: "the bearer token does not have the scope `complete`, or the interaction requires its token",
                404: "no such interaction, or another tenant's",
                409: "it was completed before with another reply (`conflict`), or has ended otherwise (`closed`)",
                410: "its deadline has passed",
                413: "the body, or the reply in it, is too large",
                415: "the body is not sent as JSON",
                422: "the reply is not of the type that was asked for (`type`), or a value is refused (`field`)",
            }),
        },
    }  # fmt: skip


def _pending() -> Schema:
    text = {**_TEXT, "maxLength": MAX_NAME, "pattern": "^[^\\u0000]*$"}
    return {
        "operationId": "pending",
        "summary": "List interactions that wait for a reply",
        "description": "Those that match all filters, by deadline, then by age. A blank filter is ignored.",
        "security": [{"bearer": []}],
        "parameters": [
            *(_query(name, text) for name in ("assignee", "group", "machine", "step", "transport")),
            _query("overdue", {"type": "boolean"}),
            _query("limit", {"type": "integer", "minimum": 1, "maximum": LARGEST_PAGE, "default": 50}),
            _query("cursor", _TEXT, "of the previous page"),
        ],
        "responses": {
            "200": _json("Page", "a page of them"),
            **_problems({
                400: "a parameter that is unknown, double or refused",
                401: "no known credentials",
                403: "the bearer token does not have the scope `read`",
            }),
        },
    }


def _show() -> Schema:
    return {
        "operationId": "show",
        "summary": "Get one interaction",
        "security": [{"bearer": []}],
        "parameters": [{"name": "interactionId", "in": "path", "required": True, "schema": _TEXT}],
        "responses": {
            "200": _json("Interaction", "the interaction, and its reply if there is one"),
            **_problems({
                401: "no known credentials",
                403: "the bearer token does not have the scope `read`",
                404: "no such interaction, or another tenant's",
            }),
        },
    }


def _document() -> Schema:
    return {
        "operationId": "document",
        "summary": "This document",
        "security": [],
        "responses": {
            "200": {"description": "OpenAPI 3.1", "content": {"application/json": {"schema": {"type": "object"}}}},
            **_problems({401: "unknown credentials were sent"}),
        },
    }


def _problems(own: dict[int, str]) -> Schema:
    """The problems of an operation, and those that every operation has."""
    everywhere = {429: "too many requests", 503: "the database does not answer"}
    found = {}
    for status, description in {**own, **everywhere}.items():
        found[str(status)] = {"description": description, "content": {MEDIA_TYPE: {"schema": _ref("Problem")}}}
        if status in everywhere:
            found[str(status)]["headers"] = {
                "Retry-After": {"description": "seconds", "required": True, "schema": {"type": "integer", "minimum": 1}}
            }
    return found


def _json(schema: str, description: str) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": _ref(schema)}}}


def _query(name: str, schema: Schema, description: str | None = None) -> Schema:
    return {"name": name, "in": "query", "schema": schema, **({"description": description} if description else {})}


def _ref(schema: str) -> Schema:
    return {"$ref": f"#/components/schemas/{schema}"}


def _closed(properties: Schema, optional: tuple[str, ...] = ()) -> Schema:
    return {
        "type": "object", "properties": properties, "additionalProperties": False,
        "required": [name for name in properties if name not in optional],
    }  # fmt: skip


_COMPLETION: Schema = {
    **_closed(
        {
            "interactionId": {**_MAYBE_TEXT, "description": "the interaction's id"},
            "correlationId": {**_MAYBE_TEXT, "description": "the interaction's correlation id"},
            "resumeToken": {**_MAYBE_TEXT, "description": "the interaction's signed token"},
            "idempotencyKey": {**_MAYBE_TEXT, "description": "accepted, but not needed: completions are idempotent"},
            "responsePayload": {**_ANY, "description": "the reply: a JSON value of the type that was asked for"},
            "actor": {**_MAYBE_TEXT, "description": "the person or system that replies; a token's own actor wins"},
        },
        optional=("interactionId", "correlationId", "resumeToken", "idempotencyKey", "actor"),
    ),
    "anyOf": [{"required": [name]} for name in ("interactionId", "correlationId", "resumeToken")],
}
_ADMITTED = _closed({
    "interactionId": _TEXT,
    "executionId": _TEXT,
    "stepId": {**_TEXT, "description": "machine.step"},
    "status": {"const": InteractionStatus.COMPLETED.value},
    "duplicate": {"type": "boolean", "description": "this completion was admitted before"},
})
_INTERACTION = _closed({
    "interactionId": _TEXT,
    "correlationId": _TEXT,
    "tenantId": _TEXT,
    "executionId": _TEXT,
    "machine": _TEXT,
    "version": {"type": "integer"},
    "step": _TEXT,
    "stepId": {**_TEXT, "description": "machine.step"},
    "itemIndex": {"type": ["integer", "null"], "description": "if it is about one item of many"},
    "status": _STATUS,
    "requestPayload": _ANY,
    "outputType": {**_TEXT, "description": "the type of the reply, as a name"},
    "outputSchema": {"type": ["object", "null"], "description": "the same as a JSON Schema"},
    "responsePayload": _ANY,
    "actor": {**_MAYBE_TEXT, "description": "the person or system that replied"},
    "assignee": _MAYBE_TEXT,
    "group": _MAYBE_TEXT,
    "requiresToken": {"type": "boolean", "description": "it is completed only with its signed token"},
    "idempotencyKey": _TEXT,
    "transportType": _TEXT,
    "transportMetadata": {"type": ["object", "null"]},
    "attempts": {"type": "integer", "description": "attempts to send it"},
    "error": {**_MAYBE_TEXT, "description": "error of the last attempt"},
    "overdue": {"type": "boolean"},
    "deadlineEpochMs": _WHEN,
    "createdAtEpochMs": {**_WHEN, "type": "integer"},
    "dispatchedAtEpochMs": _WHEN,
    "finishedAtEpochMs": _WHEN,
})
_PAGE = _closed({
    "interactions": {"type": "array", "items": _ref("Interaction")},
    "cursor": {**_MAYBE_TEXT, "description": "of the next page; null: this is the last"},
})
_PROBLEM = _closed(
    {
        "type": {**_TEXT, "format": "uri"},
        "title": _TEXT,
        "status": {"type": "integer"},
        "detail": _TEXT,
        "reason": {"type": "string", "enum": list(TITLES)},
        "field": {**_TEXT, "description": "the field at fault"},
        "interactionId": {**_TEXT, "description": "the interaction, if there is one"},
        "interactionStatus": {**_STATUS, "description": "how a closed interaction has ended"},
    },
    optional=("field", "interactionId", "interactionStatus"),
)
