"""Encodes authors' values as stored JSON text, and decodes them.

msgspec does the work; `check_json` finds what it would change silently, and names the path of a refused value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

from stepwell._core.serialization.bounds import (
    MAX_DIGITS,
    MOST_GROWTH,
    check_bounds,
    depth_problem,
    read_raw,
    text_problem,
    uncollected,
)
from stepwell._core.serialization.encoder import ModelRefused, to_json
from stepwell._core.serialization.json_check import check_json
from stepwell._core.serialization.type_shape import RESULT, Place
from stepwell.errors import InvalidInput, InvalidPayload, InvalidState

_LARGE = 4096  # bytes; from this size a value is compared with its decoded text, instead of walked through
_MOST_SCANNED = 5_000  # values in which the path of a known problem is searched
_PATH = re.compile(r"(.*) - at (`key` in )?`\$([^`]*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")


_DECODER = msgspec.json.Decoder()


def encode_value(value: object, field: str, max_payload: int | None = None) -> str:
    """The text of a result or a payload: any JSON value, with typed objects anywhere in it."""
    return write(value, RESULT, field, risky=True, decoder=None, max_payload=max_payload)[0]


def encode_raw(raw: bytes, field: str, max_payload: int) -> str:
    """The text of a payload that was received as JSON: the same as the text of its value."""
    value = read_raw(raw, field, max_payload)
    try:
        encoded = to_json(value)
    except (UnicodeEncodeError, RecursionError) as error:
        raise _explain(error, value, RESULT, field) from error
    text = encoded.decode()
    check_bounds(text, field, max_payload)
    if problem := text_problem(text, encoded) or depth_problem(encoded):
        raise _refuse(problem, value, RESULT, field)
    return text


def encode_typed(value: object, field: str, place: Place | None, decoder: msgspec.json.Decoder[Any] | None) -> str:
    """The text of a value that may be of a type; an object of the type may contain what plain JSON lacks, such as a
    datetime."""
    try:
        return encode_value(value, field)
    except InvalidInput:
        if place is None:
            raise
        return write(value, place, field, risky=True, decoder=decoder)[0]


def decode_value(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidPayload("value", f"cannot be read as JSON: {error}") from error


def write(
    value: object, place: Place, field: str, *, risky: bool, decoder: msgspec.json.Decoder[Any] | None,
    encoded: bytes | None = None, max_payload: int | None = None,
) -> tuple[str, Any]:  # fmt: skip
    """The text of a value that fits its type shape, and, with a decoder, that text decoded, as a check.

    With `max_payload` the bounds are checked as soon as there is a text, before the walk through the value.
    """
    again = None
    try:
        if risky:
            plain = _walked(value, place, field, max_payload)
            encoded = plain if encoded is None else encoded
        if encoded is None:
            encoded = to_json(value)
        text = encoded.decode()  # a search in bytes takes five times as long
        if max_payload is not None and len(text) * MOST_GROWTH > max_payload:
            check_bounds(text, field, max_payload)
        if ("\\u0000" in text or len(encoded) > MAX_DIGITS) and (problem := text_problem(text, encoded)):
            raise _refuse(problem, value, place, field)  # noqa: TRY301 - reported as all refusals are
        if not risky and "null" in text:
            check_json(value, place, field, thorough=False)
        if decoder is not None:
            # Assignments are not checked; a state that does not decode must not be committed.
            again = decoder.decode(encoded)
    except InvalidInput:
        raise
    except Exception as error:  # noqa: BLE001  serializers, properties and __post_init__ are the author's code
        raise _explain(error, value, place, field) from _original(error)
    return text, again


def _walked(value: object, place: Place, field: str, max_payload: int | None) -> bytes | None:
    """Refuse what JSON or Postgres would change. A large untyped value is mostly pure JSON: then it equals its decoded
    text, which is checked in a fiftieth of the time. Returns the text, if it had to be made."""
    encoded = None
    if place is RESULT and isinstance(value, (dict, list)):
        encoded = to_json(value)
        if max_payload is not None and len(encoded) * MOST_GROWTH > max_payload:
            check_bounds(encoded.decode(), field, max_payload)
        if len(encoded) >= _LARGE:
            if _is_plain(value, encoded):
                return encoded
            _check_finite(value, field)
    check_json(value, place, field, thorough=False)
    return encoded


def _is_plain(value: object, encoded: bytes) -> bool:
    try:  # Python's decoder takes equally long for all numbers
        with uncollected():
            return bool(json.loads(encoded) == value) and depth_problem(encoded) is None
    except (ValueError, RecursionError):
        return False


def _check_finite(value: object, field: str) -> None:
    """Refuse NaN and infinities in a large value: a walk that finds nothing else may take long."""
    try:
        json.dumps(value, allow_nan=False)
    except TypeError:
        pass  # it contains more than JSON has
    except (ValueError, RecursionError):
        raise _refuse("has a number that is not a finite number", value, RESULT, field) from None


def _refuse(problem: str, value: object, place: Place, field: str) -> InvalidPayload:
    """The refusal of a value with a known problem, with its path if that is found soon."""
    check_json(value, place, field, thorough=True, most=_MOST_SCANNED)
    return InvalidPayload(field, problem)


def read(work: Callable[[Any], Any], given: object, field: str) -> Any:
    """The result of `work(given)`; any error becomes an InvalidInput that names the path."""
    try:
        return work(given)
    except InvalidInput:
        raise
    except Exception as error:  # noqa: BLE001  validators, properties and __post_init__ are the author's code
        raise _refusal(error, field) from _original(error)


def _explain(error: Exception, value: object, place: Place, field: str) -> InvalidInput:
    """The refusal for a failed encoding; `check_json` finds a more exact path than the encoder."""
    try:
        read(lambda root: check_json(root, place, field, thorough=True, most=_MOST_SCANNED), value, field)
    except InvalidInput as refusal:
        return refusal
    if isinstance(error, msgspec.ValidationError):
        return _refusal(error, field)
    if isinstance(error, UnicodeEncodeError):
        return InvalidPayload(field, "has a lone surrogate, which is not text")
    if isinstance(error, (RecursionError, OverflowError)):
        return InvalidPayload(field, f"too deep or too large to be stored: {error}")
    return InvalidState(field, f"cannot be encoded: {type(error).__name__}: {error}")


def _refusal(error: Exception, field: str) -> InvalidState:
    """msgspec's error in Stepwell's form: `state.a.b: expected int, got str`."""
    if not isinstance(error, msgspec.ValidationError):
        return InvalidState(field, f"cannot be read: {type(error).__name__}: {error}")
    problem, path = str(error), ""
    if found := _PATH.fullmatch(problem):
        problem, in_key, path = found.groups()
        problem = f"a key: {problem}" if in_key else problem
    if error.__cause__ is not None:
        return InvalidState(field + path + getattr(error.__cause__, "path", ""), problem)
    if missing := _MISSING.fullmatch(problem):
        return InvalidState(field + path, f"required field {missing[1]!r} is missing")
    return InvalidState(field + path, (problem[:1].lower() + problem[1:]).replace("`", ""))


def _original(error: BaseException) -> BaseException:
    """The author's error, unwrapped from msgspec's and Stepwell's."""
    while isinstance(error, (msgspec.ValidationError, ModelRefused)) and error.__cause__ is not None:
        error = error.__cause__
    return error
