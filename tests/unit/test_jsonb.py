"""The text of a state as Postgres gives it back: tests/store/test_jsonb.py compares with Postgres itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple, TypedDict

import msgspec
import pytest

from stepwell._core.serialization.jsonb import as_jsonb
from stepwell._core.serialization.state_type import StateType
from stepwell._core.serialization.type_shape import Survey


@pytest.mark.parametrize("text", ['{"number":1,"name":"1.5"}', '{"list":[1,2.5,-0.5,null,true]}', "{}"])
def test_a_plain_record_is_left_unchanged(text: str) -> None:
    assert as_jsonb(text, is_mapping=False) is text


def test_keys_are_kept_by_length_and_then_by_bytes() -> None:
    assert as_jsonb('{"bb":1,"é":2,"b":3,"a":4,"aaa":5}', is_mapping=True) == '{"a":4,"b":3,"bb":1,"é":2,"aaa":5}'


def test_whole_numbers_with_an_exponent_stay_whole() -> None:
    assert as_jsonb('{"a":1e17,"b":-1e22,"c":1.5,"d":1e-7,"e":-0.0}', is_mapping=False) == (
        '{"a":100000000000000000,"b":-10000000000000000000000,"c":1.5,"d":1e-7,"e":0.0}'
    )


class Size(Enum):
    SMALL = "small"


class Line(msgspec.Struct):
    article: str
    number: int


class Point(NamedTuple):
    x: int
    y: int


class Loose(TypedDict):
    number: int


@dataclass
class Order:
    lines: list[Line] = field(default_factory=list)
    size: Size = Size.SMALL
    at: tuple[datetime, Point] | None = None
    tags: frozenset[str] = frozenset()
    parts: list[Order] = field(default_factory=list)


def test_a_type_without_mappings_and_fractions_is_exact() -> None:
    text = '{"lines":[{"number":1,"article":"1e5"}],"size":"small","tags":["b","a"]}'
    assert StateType(Order).as_stored(text) is text


@pytest.mark.parametrize(
    "kind", [float, Decimal, Any, object, dict[str, int], Loose, int | float, list[tuple[str, float]], msgspec.Raw]
)
def test_a_text_of_another_type_is_inspected(kind: Any) -> None:
    assert Survey(Order).exact
    assert not Survey(msgspec.defstruct("Holder", [("lines", list[Line]), ("value", kind)])).exact
