"""The body of a request: bounded in size, read as it comes, and the completion in it.

The reply is not decoded here: the sender may have no right to complete the interaction.
"""

from __future__ import annotations

import re
from typing import NoReturn

import msgspec
from starlette.requests import Request

from stepwell._core.serialization.bounds import without_strings
from stepwell.web.problems import Problem

_UNKNOWN = re.compile(r"unknown field `(.*)`", re.DOTALL)
_MISSING = re.compile(r"required field `(.*)`", re.DOTALL)
_AT = re.compile(r" - at `\$\.(.*)`", re.DOTALL)
_JSON = re.compile(r"application/(?:json|[^\s;/]+\+json)", re.IGNORECASE)
LONGEST_NAME = 200  # characters of an unknown name that a refusal repeats


class CompletionBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """One completion, as `POST /interactions/complete` takes it."""

    interaction_id: str | msgspec.UnsetType | None = msgspec.UNSET
    correlation_id: str | msgspec.UnsetType | None = msgspec.UNSET
    resume_token: str | msgspec.UnsetType | None = msgspec.UNSET
    # Accepted because the contract has it; an interaction is completed once in any case.
    idempotency_key: str | msgspec.UnsetType | None = msgspec.UNSET
    response_payload: msgspec.Raw
    actor: str | msgspec.UnsetType | None = msgspec.UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The same, with None for what is missing or blank."""

    interaction: str | None
    correlation: str | None
    token: str | None
    reply: msgspec.Raw
    actor: str | None


_decoder = msgspec.json.Decoder(CompletionBody)
_NAMES = ", ".join(field.encode_name for field in msgspec.structs.fields(CompletionBody))


async def read_completion(request: Request, most: int) -> Completion:
    """The completion in a request's body."""
    found = _decode(await _read(request, most))
    return Completion(
        interaction=_given(found.interaction_id), correlation=_given(found.correlation_id),
        token=_given(found.resume_token), reply=found.response_payload, actor=_given(found.actor),
    )  # fmt: skip


async def _read(request: Request, most: int) -> bytes:
    """The body, up to its longest length; a longer one is not read to its end."""
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
        body.decode()  # the decoder does not check the reply
    except RecursionError:
        raise _malformed("the body is nested too deeply") from None
    except msgspec.ValidationError as error:
        _refuse(str(error))
    except ValueError as error:  # not JSON, or not UTF-8
        raise _malformed(f"the body is not JSON: {error}") from None
    _check_names(body, found)
    return found


def _check_names(body: bytes, found: CompletionBody) -> None:
    """Refuse a body that has a name twice: readers of JSON do not agree which one counts.

    Beside the reply it has only texts and nulls: one comma between two of them.
    """
    commas = without_strings(body).count(b",") - without_strings(bytes(found.response_payload)).count(b",")
    if commas + 1 > sum(value is not msgspec.UNSET for value in msgspec.structs.astuple(found)):
        raise _malformed(f"the body has one of its names twice; give each once ({_NAMES})")


def _refuse(problem: str) -> NoReturn:
    if unknown := _UNKNOWN.search(problem):
        name = unknown[1][:LONGEST_NAME]
        raise _malformed(f"{name}: is unknown (known: {_NAMES})", name)
    if missing := _MISSING.search(problem):
        raise _malformed(f"{missing[1]}: is missing", missing[1])
    if at := _AT.search(problem):
        raise _malformed(f"{at[1]}: {problem[: at.start()]}", at[1])
    raise _malformed(f"the body is not a completion: {problem}")


def _malformed(detail: str, field: str | None = None) -> Problem:
    return Problem(400, "malformed", detail, field=field)


def _too_large(request: Request, most: int) -> Problem:
    # A server of HTTP/1 would otherwise read and drop what is still sent: without end if the body has no end.
    close = {"Connection": "close"} if request.scope.get("http_version", "").startswith("1") else {}
    return Problem(413, "size", f"the body is longer than {most:,} bytes; store a reference instead", headers=close)


def _given(text: str | msgspec.UnsetType | None) -> str | None:
    return (text or "").strip() or None
