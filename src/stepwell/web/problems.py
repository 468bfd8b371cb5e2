"""Problems as HTTP responses: problem+json after RFC 9457, with our `reason`, and the `field` at fault."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from stepwell.errors import (
    CompletionConflict,
    CompletionRefused,
    CompletionTooLate,
    DatabaseError,
    EngineClosed,
    InteractionClosed,
    InvalidInput,
    InvalidReply,
    InvalidToken,
    PayloadTooLarge,
    ProjectionFailed,
    UnknownInteraction,
)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_OUTAGE = 2  # seconds
TITLES: Mapping[str, str] = {
    "malformed": "The request is malformed",
    "credentials": "These credentials are unknown",
    "token": "The resume token is invalid",
    "scope": "The bearer token may not do this",
    "unknown": "There is no such interaction",
    "path": "There is nothing here",
    "method": "This method is not allowed here",
    "refused": "The completion was refused",
    "conflict": "It was completed before, with another reply",
    "closed": "The interaction is closed",
    "late": "The interaction's deadline has passed",
    "size": "The request is too large",
    "media": "The body is not JSON",
    "type": "The reply is not of the type that was asked for",
    "projection": "No reply could be made of what was sent",
    "field": "A field was refused",
    "rate": "Too many requests",
    "internal": "Something went wrong here",
    "unavailable": "The database does not answer",
}
FIELDS: Mapping[str, str] = {
    "interaction": "interactionId", "correlation": "correlationId", "token": "resumeToken", "reply": "responsePayload",
    "after": "cursor",
}  # fmt: skip
STATUSES: Mapping[type[CompletionRefused], int] = {
    UnknownInteraction: 404, InvalidToken: 403, CompletionConflict: 409, InteractionClosed: 409,
    CompletionTooLate: 410, InvalidReply: 422, ProjectionFailed: 422,
}  # fmt: skip
_BEARER = {"WWW-Authenticate": "Bearer"}
_log = logging.getLogger("stepwell.web")


class Problem(Exception):
    """A refusal as a response; it never leaves this package."""

    def __init__(
        self, status: int, reason: str, detail: str, *, field: str | None = None, headers: Mapping[str, str] = {}
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason
        self.detail = detail
        self.field = field
        self.headers = dict(headers)
        self.more: dict[str, str] = {}  # facts beside those of the RFC

    def response(self) -> Response:
        body: dict[str, Any] = {
            "type": f"urn:stepwell:problem:{self.reason}", "title": TITLES[self.reason], "status": self.status,
            "detail": self.detail, "reason": self.reason,
        }  # fmt: skip
        if self.field is not None:
            body["field"] = self.field
        return as_json({**body, **self.more}, self.status, MEDIA_TYPE, self.headers)


def as_json(
    value: object, status: int = 200, media_type: str = "application/json", headers: Mapping[str, str] = {}
) -> Response:
    """A value as a response."""
    return respond(write_json(value), status, media_type, headers)


def write_json(value: object) -> str:
    """A value as JSON. The standard encoder: numbers that came out of jsonb may be of any length."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def respond(
    text: str, status: int = 200, media_type: str = "application/json", headers: Mapping[str, str] = {}
) -> Response:
    """A response that must not be cached."""
    never = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return Response(text.encode("utf-8", "replace"), status, {**never, **headers}, media_type)


def unauthenticated(detail: str) -> Problem:
    return Problem(401, "credentials", detail, headers=_BEARER)


def too_fast(seconds: float) -> Problem:
    return Problem(
        429, "rate", f"too many requests; the next one may come in {seconds:.3g} s",
        headers={"Retry-After": str(math.ceil(seconds))},
    )  # fmt: skip


def refusal(error: CompletionRefused, *, has_bearer: bool) -> Problem:
    """The problem of a refused completion."""
    wrong = error if isinstance(error, InvalidToken) else error.__cause__
    if isinstance(wrong, InvalidToken) and not has_bearer:
        # An unknown caller learns only this: neither whether there is such an interaction nor its status.
        return Problem(401, wrong.reason, wrong.problem, field="resumeToken", headers=_BEARER)
    problem = Problem(STATUSES.get(type(error), 409), error.reason, str(error))
    if error.interaction is not None:
        problem.more["interactionId"] = error.interaction
    match error:
        case InvalidToken():
            problem.field = "resumeToken"
        case InvalidReply():
            problem.field = shown(error.field)
        case InteractionClosed():
            problem.more["interactionStatus"] = error.status
    return problem


def invalid(error: InvalidInput, status: int = 422) -> Problem:
    """The problem of a value that the engine refused."""
    if isinstance(error, PayloadTooLarge):
        return Problem(413, "size", error.problem, field=shown(error.field))
    field = shown(error.field)
    return Problem(status, "malformed" if status == 400 else "field", f"{field}: {error.problem}", field=field)  # noqa: PLR2004 - Bad Request


def shown(field: str) -> str:
    """The name of an engine's field in HTTP: "reply.amount" is "responsePayload.amount"."""
    for ours, theirs in FIELDS.items():
        if field == ours or field.startswith((f"{ours}.", f"{ours}[")):
            return theirs + field[len(ours) :]
    return field


def _problem_response(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)  # noqa: S101 - registered for this alone
    return error.response()


def _http_response(_: Request, error: Exception) -> Response:
    """What Starlette itself refuses: an unknown path, another method."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for this alone
    reason = {404: "path", 405: "method"}.get(error.status_code, "malformed")
    return Problem(error.status_code, reason, str(error.detail), headers=error.headers or {}).response()


def _outage_response(request: Request, error: Exception) -> Response:
    _log.warning("%s %r: %s", request.method, request.url.path, error)
    return Problem(
        503, "unavailable", "the database does not answer now; send the same request again: a completion that was "
        "admitted is reported as a duplicate", headers={"Retry-After": str(RETRY_AFTER_OUTAGE)},
    ).response()  # fmt: skip


def _disconnect_response(_: Request, __: Exception) -> Response:
    return Problem(400, "malformed", "the body ended too early").response()


def _fault_response(_: Request, __: Exception) -> Response:
    """Any other error. Starlette raises it again once this is sent, so that the server logs it."""
    return Problem(500, "internal", "this is an error of the server; its log says more").response()


HANDLERS: Mapping[Any, Any] = {
    Problem: _problem_response, HTTPException: _http_response, DatabaseError: _outage_response,
    EngineClosed: _outage_response, ClientDisconnect: _disconnect_response, Exception: _fault_response,
}  # fmt: skip
