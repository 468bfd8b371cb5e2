"""The JSON text that Postgres returns for a text it stored as jsonb: other key orders and numbers, the same meaning.

A step that runs ahead gets its state from the committed text. After a crash it would get it from the database, where
keys have another order and `1e17` is a whole number. Both must be equal, so that no bug shows only after a crash.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

import msgspec

# A number with an exponent, or a negative zero. A match inside a string costs only time.
_ODD_NUMBER = re.compile(r"\d[eE]|-0(?![.]?\d*[1-9])")


def as_jsonb(text: str, *, is_mapping: bool) -> str:
    """The text as the database returns it, up to spaces. A record without an inner mapping needs no key order."""
    if not is_mapping and text.count("{") <= 1 and _ODD_NUMBER.search(text) is None:
        return text
    return msgspec.json.encode(_kept(msgspec.json.decode(text))).decode()


def _kept(value: Any) -> Any:
    match value:
        case dict():
            return {key: _kept(value[key]) for key in sorted(value, key=_order)}
        case list():
            return [_kept(item) for item in value]
        case float():
            return _number(value)
        case _:
            return value


def _order(key: str) -> tuple[int, bytes]:
    """jsonb orders keys by their length in bytes, then by their bytes."""
    encoded = key.encode()
    return len(encoded), encoded


def _number(value: float) -> float | int:
    """jsonb stores a number as a decimal: a whole one that was written with an exponent is returned as an integer."""
    if value == 0:
        return 0.0
    written = msgspec.json.encode(value).decode()
    return int(Decimal(written)) if value.is_integer() and "e" in written else value
