"""Bounds of a JSON text, checked in the text before it is decoded: size, number of values, digits.

The size is that of the text as Postgres writes it: with a space after each comma and colon, and `1e308`, five bytes,
as a number of 309 digits. Each check reads the text a few times, in C.
"""

from __future__ import annotations

import gc
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, Final

from stepwell.errors import InvalidPayload, PayloadTooLarge

BYTES_PER_VALUE: Final = 8  # of max_payload; SQL has the same number
MAX_DIGITS: Final = 1_000
MAX_DEPTH: Final = 500
MOST_LONG_NUMBERS: Final = 1_000
MOST_GROWTH: Final = 64  # times, of a text that Stepwell wrote: `5e-324,` becomes 328 bytes
_MOST_SHRINKING: Final = 6  # times, of a received text: `\u0041` is one byte

_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_TOO_MANY_DIGITS = b"0" * (MAX_DIGITS + 1)
_EMPTY = re.compile(rb"\[\s*\]|\{\s*\}")
_SCIENTIFIC = re.compile(rb"[0-9](?:\.([0-9]+))?e([+-]?)([0-9]+)")
_LONG_NUMBER = re.compile(rb"[0-9]{21,}")
_LONG_KEY = re.compile(rb'"-?[0-9]{21,}":')
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS: Final = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


def most_values(max_payload: int) -> int:
    """How many values a payload may have: members of objects, items of lists, and the payload itself."""
    return max_payload // BYTES_PER_VALUE


def check_bounds(text: str, field: str, max_payload: int) -> None:
    """Refuse a text by Stepwell's encoder, without spaces, that has too many bytes or values."""
    if len(text) * MOST_GROWTH <= max_payload:
        return
    encoded = text.encode()
    if len(encoded) > max_payload:
        raise PayloadTooLarge(field, len(encoded), max_payload)
    bare = without_strings(encoded)
    _check_values(bare, field, max_payload)
    size = size_written(encoded, bare)
    if size > max_payload:
        raise PayloadTooLarge(field, size, max_payload)


def check_raw(raw: bytes, field: str, max_payload: int) -> None:
    """Refuse a received JSON text that would cost too much to decode."""
    if len(raw) > _MOST_SHRINKING * max_payload:
        raise PayloadTooLarge(field, len(raw), max_payload)
    if len(raw) <= MAX_DIGITS and len(raw) * BYTES_PER_VALUE <= max_payload:
        return
    bare = without_strings(raw)
    _check_values(bare, field, max_payload)
    if has_many_digits(bare):
        raise InvalidPayload(field, f"a number of more than {MAX_DIGITS:,} digits; send it as a string")


def read_raw(raw: bytes, field: str, max_payload: int) -> Any:
    """Check the bounds of a received JSON text, and decode it."""
    check_raw(raw, field, max_payload)
    try:
        with uncollected():
            return _decoder(field).decode(raw.decode())
    except InvalidPayload:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidPayload(field, f"is not JSON: {error}") from error


@contextmanager
def uncollected() -> Iterator[None]:
    """Disable garbage collection: new objects are no garbage, and a scan of deep ones doubles the cost."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def without_strings(encoded: bytes) -> bytes:
    """The text with one quote in place of each string."""
    if b"\\" in encoded:  # a quote that does not end its string
        encoded = encoded.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b'"'.join(encoded.split(b'"')[::2])


def count_values(bare: bytes) -> int:
    """The number of values in a text without strings: each but the first of a list or object has a comma before it."""
    return 1 + bare.count(b",") + bare.count(b"[") + bare.count(b"{") - len(_EMPTY.findall(bare))


def depth_of(bare: bytes) -> int:
    """How deep a text without strings is nested."""
    return max(accumulate(map(_STEPS.__getitem__, bare.translate(None, _NO_BRACKETS))), default=0)


def depth_problem(encoded: bytes) -> str | None:
    """The problem of a text that is nested too deep; None if it is not."""
    if encoded.count(b"[") + encoded.count(b"{") <= MAX_DEPTH or depth_of(without_strings(encoded)) <= MAX_DEPTH:
        return None
    return f"nested deeper than {MAX_DEPTH} levels"


def text_problem(text: str, encoded: bytes) -> str | None:
    """The problem of a string or number in a text by Stepwell's encoder, given as str and bytes; None if none."""
    if "\\u0000" in text and _NUL.search(encoded) is not None:
        return "has a NUL character, which Postgres cannot store"
    if len(encoded) > MAX_DIGITS and has_many_digits(encoded) and has_many_digits(without_strings(encoded)):
        return f"has an integer of more than {MAX_DIGITS:,} digits"
    return None


def has_many_digits(bare: bytes) -> bool:
    """Whether a number has too many digits in a row, in a text without strings."""
    sampled = bare[::MAX_DIGITS]  # a run of so many digits includes one of these positions
    return len(sampled.translate(None, b"0123456789")) < len(sampled) and _TOO_MANY_DIGITS in bare.translate(_DIGITS)


def has_many_long_numbers(text: str) -> bool:
    """Whether very many whole numbers or keys are longer than 64 bits."""
    encoded = text.encode()
    found = len(_LONG_KEY.findall(encoded))
    return found > MOST_LONG_NUMBERS or found + len(_LONG_NUMBER.findall(without_strings(encoded))) > MOST_LONG_NUMBERS


def size_written(encoded: bytes, bare: bytes) -> int:
    """How many bytes Postgres writes for a text by Stepwell's encoder; one too many for each `-0.0`."""
    return len(encoded) + bare.count(b",") + bare.count(b":") + _growth(bare)


def _check_values(bare: bytes, field: str, max_payload: int) -> None:
    most = most_values(max_payload)
    if bare.count(b",") + bare.count(b"[") + bare.count(b"{") < most:
        return
    values = count_values(bare)
    if values > most:
        raise PayloadTooLarge(field, values, most, unit="values")


def _growth(bare: bytes) -> int:
    """How much numbers with an exponent grow: Postgres writes them out. Stepwell's encoder writes none below 16."""
    grown = 0
    for (fraction, sign, exponent), count in Counter(_SCIENTIFIC.findall(bare)).items():
        before = 1 + len(fraction) + bool(fraction) + 1 + len(sign) + len(exponent)
        power = int(exponent)
        after = power + 2 + len(fraction) if sign == b"-" else power + 1
        grown += count * (after - before)
    return grown


def _decoder(field: str) -> json.JSONDecoder:
    """Python's decoder: msgspec takes fifty times as long for a float near the ends of its range."""

    def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):  # JSON decoders disagree which one counts
            [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
            raise InvalidPayload(field, f"has an object that contains {name!r:.100} twice")
        return found

    def finite(written: str) -> float:
        number = float(written)
        if not math.isfinite(number):
            raise InvalidPayload(field, f"the number {written:.40} is out of range; send it as a string")
        return number

    def refuse(constant: str) -> Any:
        raise InvalidPayload(field, f"is not JSON: {constant} is not a number")

    return json.JSONDecoder(object_pairs_hook=unique, parse_float=finite, parse_constant=refuse)
