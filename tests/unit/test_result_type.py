"""A job's result comes back as the type that its function declares."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple, NoReturn, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from stepwell import DefinitionError, InvalidInput, InvalidPayload
from stepwell._core.serialization.codec import decode_value
from stepwell._core.serialization.result_type import UNTYPED, result_type

NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


@dataclass
class Line:
    name: str
    at: datetime


@dataclass
class Receipt:
    lines: list[Line] = field(default_factory=list)


class Total(msgspec.Struct):
    amount: Decimal


class Mail(pydantic.BaseModel):
    to: str
    sent_at: datetime


class Row(TypedDict):
    number: int


class Point(NamedTuple):
    x: int
    y: int


class Colour(Enum):
    RED = "red"


class Plain:
    """A class that nothing knows how to store."""


@dataclass
class Stored(Plain):
    number: int


@pytest.mark.parametrize(
    ("returns", "value"),
    [
        (int, 7),
        (str, "seven"),
        (float, 7.5),
        (bool, True),
        (list[int], [1, 2]),
        (dict[str, Any], {"a": [1, {"b": None}]}),
        (int | None, None),
        (Receipt, Receipt([Line("tea", NOON)])),
        (list[Receipt], [Receipt(), Receipt([Line("tea", NOON)])]),
        (Total, Total(Decimal("1.10"))),
        (Mail, Mail(to="ada", sent_at=NOON)),
        (dict[str, Mail], {"first": Mail(to="ada", sent_at=NOON)}),
        (Row, {"number": 1}),
        (Point, Point(1, 2)),
        (tuple[int, str], (1, "a")),
        (datetime, NOON),
        (date, NOON.date()),
        (timedelta, timedelta(seconds=5)),
        (Decimal, Decimal("1.10")),
        (UUID, UUID(int=7)),
        (bytes, b"\x00\xff"),
        (set[int], {1, 2}),
        (Colour, Colour.RED),
        (list[datetime], [NOON]),
        (dict[int, str], {7: "seven"}),
        (datetime | None, NOON),
    ],
)
def test_a_result_comes_back_with_the_type_that_the_job_returns(returns: Any, value: Any) -> None:
    """Typing: `Handle[Result]` is honest at run time."""
    result = result_type("sum_up", returns)

    back = result.decode(decode_value(result.encode(value)))

    assert (back, type(back)) == (value, type(value))


@pytest.mark.parametrize("returns", [Any, object, None, type(None), NoReturn, Plain, Plain | None, Line | Receipt])
def test_a_result_without_an_unambiguous_type_stays_as_stored(returns: Any) -> None:
    """Also a plain class: an object of a subclass may be storable."""
    result = result_type("sum_up", returns)

    back = result.decode(decode_value(result.encode(Stored(7))))

    assert back == {"number": 7}


@pytest.mark.parametrize(
    ("returns", "advice"),
    [
        (Awaitable[int], "write it as `async def`"),
        (Iterator[int], "return a value that JSON has"),
        (Callable[[], int], "return a value that JSON has"),
        (complex, "return a value that JSON has"),
    ],
)
def test_an_unstorable_result_annotation_is_refused_at_registration(returns: Any, advice: str) -> None:
    with pytest.raises(DefinitionError, match=f"job sum_up: it returns .* cannot be stored; {advice}"):
        result_type("sum_up", returns)


def test_a_result_that_does_not_fit_is_stored_and_read_with_its_path() -> None:
    """When a job returns, its effects have happened: a wrong annotation does not undo them."""
    result = result_type("sum_up", Receipt)
    stored = result.encode({"lines": [{"name": "tea", "at": 7}]})

    with pytest.raises(InvalidInput) as caught:
        result.decode(decode_value(stored))

    assert (caught.value.field, caught.value.problem) == ("result.lines[0].at", "expected datetime, got int")


@pytest.mark.parametrize("value", [object(), float("nan"), "\x00", datetime(2026, 7, 1), NOON])  # noqa: DTZ001 - naive on purpose
def test_a_result_that_neither_json_nor_the_annotation_holds_is_refused(value: Any) -> None:
    with pytest.raises(InvalidPayload) as typed:
        result_type("sum_up", int).encode(value)
    with pytest.raises(InvalidPayload) as untyped:
        UNTYPED.encode(value)

    assert str(typed.value) == str(untyped.value)
