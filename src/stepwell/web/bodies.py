"""What a request carries: a body of bounded size, read as it comes, and the answer that stands in it."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

import msgspec
from starlette.requests import Request

from stepwell.web.problems import Problem

_UNKNOWN = re.compile(r"unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"required field `(.*)`", re.DOTALL)
_AT = re.compile(r" - at `\$\.(.*)`", re.DOTALL)
_JSON = re.compile(r"application/(?:json|[^\s;/]+\+json)", re.IGNORECASE)


class CompletionBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """One answer, as `POST /interactions/complete` takes it."""

    interaction_id: str | None = None
    correlation_id: str | None = None
    resume_token: str | None = None
    idempotency_key: str | None = None  # taken for the sake of the contract; a question is answered once in any case
    response_payload: Any
    actor: str | None = None


_decoder = msgspec.json.Decoder(CompletionBody)


async def read_completion(request: Request, most: int) -> CompletionBody:
    """The answer in a request's body; blank names are as good as none."""
    found = _decode(await _read(request, most))
    return msgspec.structs.replace(
        found, interaction_id=_given(found.interaction_id), correlation_id=_given(found.correlation_id),
        resume_token=_given(found.resume_token), actor=_given(found.actor),
    )  # fmt: skip


async def _read(request: Request, most: int) -> bytes:
    """The body, as far as it is allowed to be long; what is longer is not even read."""
    if not _JSON.fullmatch(request.headers.get("content-type", "").partition(";")[0].strip()):
        raise Problem(415, "media", "send JSON, with Content-Type: application/json")
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise Problem(415, "media", "send the body as it is, without Content-Encoding")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > most:
        raise _too_large(request, most)
    body = bytearray()
    async for chunk in request.stream():
        if len(body) + len(chunk) > most:
            raise _too_large(request, most)
        body += chunk
    return bytes(body)


def _decode(body: bytes) -> CompletionBody:
    try:
        found = _decoder.decode(body)
        json.loads(body, object_pairs_hook=_refuse_twice, parse_int=str, parse_float=str)
    except RecursionError:
        raise _malformed("the body is nested too deeply") from None
    except msgspec.ValidationError as error:
        _refuse(str(error))
    except ValueError as error:  # no JSON, or no UTF-8
        raise _malformed(f"the body is not JSON: {error}") from None
    return found


def _refuse_twice(pairs: list[tuple[str, Any]]) -> None:
    """Refuse an object that says something twice: readers of JSON do not agree which one counts."""
    names = set()
    for name, _ in pairs:
        if name in names:
            raise _malformed(f"{name}: is there twice", name)
        names.add(name)


def _refuse(problem: str) -> NoReturn:
    if unknown := _UNKNOWN.search(problem):
        known = ", ".join(field.encode_name for field in msgspec.structs.fields(CompletionBody))
        raise _malformed(f"{unknown[1]}: is unknown (known: {known})", unknown[1])
    if missing := _MISSING.search(problem):
        raise _malformed(f"{missing[1]}: is missing", missing[1])
    if at := _AT.search(problem):
        raise _malformed(f"{at[1]}: {problem[: at.start()]}", at[1])
    raise _malformed(f"the body is no completion: {problem}")


def _malformed(detail: str, field: str | None = None) -> Problem:
    return Problem(400, "malformed", detail, field=field)


def _too_large(request: Request, most: int) -> Problem:
    # A server of HTTP/1 would go on reading, and dropping, what is still sent: for ever, of a body without an end.
    close = {"Connection": "close"} if request.scope.get("http_version", "").startswith("1") else {}
    return Problem(413, "size", f"the body is longer than {most:,} bytes; store a reference instead", headers=close)


def _given(text: str | None) -> str | None:
    return (text or "").strip() or None
