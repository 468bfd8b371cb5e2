"""Walks through a value and finds what JSON or Postgres would refuse or change.

It keeps its own stack: a value of any depth, also one that contains itself, ends in an error with a path.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType
from typing import Any
from uuid import UUID

import msgspec

from stepwell._core.serialization.bounds import MAX_DEPTH, MAX_DIGITS
from stepwell._core.serialization.type_shape import JSON, MODEL, TYPED, Place, Record, Rule, record_for, record_of
from stepwell.errors import InvalidInput, InvalidPayload, InvalidState, _near_miss

_TOO_LARGE = 10**MAX_DIGITS
_MINUTE = timedelta(minutes=1)
_TYPED_LEAVES = (bytes, bytearray, memoryview, date, time, timedelta, UUID, msgspec.Raw)
_UNTYPED = (Rule.JSON, Rule.RESULT)
_HARMLESS = frozenset({bool, NoneType, msgspec.UnsetType})
_UNSUSPECTED = _HARMLESS | {str, int}

_Child = tuple[object, object, Place]


# One container on the path from the root to a value: the step above it, its key there, the container, its depth.
_Step = tuple["_Step | None", object, object, int]


class _Refusal(Exception):
    def __init__(self, problem: str, kind: type[InvalidInput] = InvalidPayload) -> None:
        self.problem = problem
        self.kind = kind


def check_json(root: object, place: Place, field: str, *, thorough: bool, most: float = math.inf) -> None:
    """Raises InvalidPayload or InvalidState with the path of the first problem among `most` values.

    Strings and integers are checked only if `thorough`: for an encoded value, its bytes show whether any is bad.
    """
    quiet = _HARMLESS if thorough else _UNSUSPECTED
    seen = 0
    todo: list[tuple[Iterable[_Child], _Step | None]] = [(((None, root, place),), None)]
    while todo:
        children, above = todo.pop()
        depth = 1 if above is None else above[3] + 1
        for key, value, where in children:
            if type(value) in quiet:
                continue
            if (seen := seen + 1) > most:
                return
            try:
                below = _children(value, where)
            except _Refusal as refusal:
                raise refusal.kind(_path(field, above, key), refusal.problem) from None
            if below is not None:
                if depth > MAX_DEPTH:
                    raise _too_deep(field, above, value)
                todo.append((below, (above, key, value, depth)))


def _children(value: object, place: Place) -> Iterable[_Child] | None:
    """The values below a container, or None for a leaf; refuses either if its type shape does not allow it."""
    if isinstance(value, dict):
        return _entries(value, place)
    if isinstance(value, (list, tuple)):
        return _items(value, place)
    if isinstance(value, (str, int, float, Decimal, Enum)):
        _check_scalar(value, place)
        return None
    return _children_of_object(value, place)


def _children_of_object(value: object, place: Place) -> Iterable[_Child] | None:
    if isinstance(value, _TYPED_LEAVES) and place.rule not in _UNTYPED:
        _check_typed_leaf(value)
        return None
    if place.rule is not Rule.JSON:
        kind: type = type(value)
        if record := place.records.get(kind) or record_of(kind):
            return _attributes(value, record)
    if isinstance(value, Mapping):
        return _entries(value, place)
    if place.rule in _UNTYPED:
        raise _Refusal(f"JSON has no {_name(value)}; use a typed state, or a string")
    if isinstance(value, (set, frozenset)):
        return _items(tuple(value), place)
    if place.rule is Rule.MODEL:
        return None
    raise _Refusal(f"objects of type {_name(value)} cannot be stored")


def _check_scalar(value: str | int | float | Decimal | Enum, place: Place) -> None:
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, int):
        if not -_TOO_LARGE < value < _TOO_LARGE:
            raise _Refusal(f"an integer of more than {MAX_DIGITS:,} digits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _Refusal(f"{value!r} is not a finite number")
    elif place.rule in _UNTYPED:
        raise _Refusal(f"JSON has no {_name(value)}; use a typed state, or a string")
    elif isinstance(value, Decimal) and not value.is_finite():
        raise _Refusal(f"{value!r} is not a finite number")


def _check_text(text: str) -> None:
    if "\0" in text:
        raise _Refusal("a NUL character, which Postgres cannot store")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _Refusal(f"a lone surrogate at position {error.start}, which is not text") from None


def _check_typed_leaf(value: object) -> None:
    if isinstance(value, (datetime, time)):
        offset = value.utcoffset()
        if offset is None and isinstance(value, datetime):
            raise _Refusal(f"the naive datetime {value.isoformat()}; give it a timezone")
        if offset is not None and offset % _MINUTE:
            raise _Refusal(f"{value.isoformat()} has seconds in its UTC offset, which its JSON form drops; "
                           "convert it to UTC")


def _items(values: list[object] | tuple[object, ...], place: Place) -> Iterable[_Child]:
    if len(place.positions) == len(values):
        return zip(range(len(values)), values, place.positions, strict=True)
    where = place.items or (TYPED if place.positions else JSON)
    return ((index, value, where) for index, value in enumerate(values))


def _entries(mapping: Mapping[Any, object], place: Place) -> Iterable[_Child]:
    if place.values is None and (record := record_for(mapping, place)) is not None:
        return _named_entries(mapping, record)
    where, keys = place.values or JSON, place.keys or JSON
    for key in mapping:
        if isinstance(key, str):
            _check_text(key)
        elif keys.rule in _UNTYPED:
            raise _Refusal(f"the key {key!r} is not a string")
        elif _children(key, keys) is not None:
            raise _Refusal(f"the key {key!r} cannot be a key in JSON")
    return ((key, value, where) for key, value in mapping.items())


def _named_entries(mapping: Mapping[Any, object], record: Record) -> Iterable[_Child]:
    for key in mapping:
        if not (key in record.names or record.is_open or key == record.tag_field):
            near = _near_miss(key, record.names) if isinstance(key, str) else ""
            raise _Refusal(f"unknown field {key!r}{near}", InvalidState)
    return ((key, value, record.names.get(key, MODEL)) for key, value in mapping.items())


def _attributes(value: Any, record: Record) -> Iterable[_Child]:
    if record.defaults:
        record.complete(value)
    children = [(name, getattr(value, name, None), place) for name, place in record.attributes.items()]
    if record.is_open:
        children += [(name, extra, MODEL) for name, extra in value.model_extra.items()]
    return children


def _too_deep(field: str, above: _Step | None, value: object) -> InvalidPayload:
    first: str | None = None
    while above is not None:
        higher, key, container, _ = above
        if container is value:
            first = _path(field, higher, key)
        above = higher
    if first is not None:
        return InvalidPayload(first, "contains itself")
    return InvalidPayload(field, f"nested deeper than {MAX_DEPTH} levels")


def _path(field: str, above: _Step | None, key: object) -> str:
    keys = [key]
    while above is not None:
        above, key, _, _ = above
        keys.append(key)
    keys.pop()
    return field + "".join(_segment(one) for one in reversed(keys))


def _segment(key: object) -> str:
    return f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]"


def _name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
