"""Types of replies, at the top of a module, as another process finds them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic


@dataclass
class Score:
    name: str
    points: int = 0


class Payment(msgspec.Struct, forbid_unknown_fields=True):
    id: UUID
    amount: Decimal
    paid_at: datetime
    tags: list[str] = []


class Approved(msgspec.Struct, tag="approved"):
    by: str


class Declined(msgspec.Struct, tag="declined"):
    reason: str


class Person(pydantic.BaseModel):
    name: str
    born: date | None = None


class Team(pydantic.BaseModel):
    lead: Person
    others: list[Person] = []


class Address(TypedDict):
    street: str
    number: int


class Part(TypedDict, total=False):
    weight: float


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: float
    y: float


@dataclass
class Tree:
    value: int
    children: list[Tree] = field(default_factory=list)


class Picky(msgspec.Struct):
    """The schema allows any number; the type does not."""

    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError("odd numbers are not allowed")


class Moment(msgspec.Struct):
    at: Annotated[datetime, msgspec.Meta(tz=True)]


class Short(msgspec.Struct):
    code: Annotated[str, msgspec.Meta(min_length=2, max_length=3)]
    count: Annotated[int, msgspec.Meta(ge=1, lt=10)]
    ratio: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    parts: Annotated[list[int], msgspec.Meta(max_length=2)] = []


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ID = UUID("8f14e45f-ceea-467f-a0e0-0123456789ab")
PAYMENT = {"id": str(ID), "amount": "12.50", "paid_at": "2026-01-01T12:00:00Z"}

TYPED: dict[str, tuple[Any, Any, Any]] = {
    "dataclass": (Score, {"name": "a"}, Score("a", 0)),
    "struct": (Payment, PAYMENT, Payment(ID, Decimal("12.50"), NOON)),
    "model": (Person, {"name": "Ana", "born": "2000-01-02"}, Person(name="Ana", born=date(2000, 1, 2))),
    "typed dict": (Address, {"street": "Elm", "number": 3}, {"street": "Elm", "number": 3}),
    "list": (list[Score], [{"name": "a", "points": 1}, {"name": "b"}], [Score("a", 1), Score("b")]),
    "list of models": (list[Person], [{"name": "Ana"}], [Person(name="Ana")]),
    "dict of models": (
        dict[str, Team], {"a": {"lead": {"name": "Ana"}}}, {"a": Team(lead=Person(name="Ana"))},
    ),
    "dict": (dict[str, Score], {"x": {"name": "a"}}, {"x": Score("a")}),
    "tuple": (tuple[int, str], [1, "a"], (1, "a")),
    "many": (tuple[int, ...], [1, 2, 3], (1, 2, 3)),
    "union": (Approved | Declined, {"type": "declined", "reason": "no"}, Declined("no")),
    "optional": (Score | None, None, None),
    "either": (int | str, "a", "a"),
    "literal": (Literal["yes", "no"], "no", "no"),
    "enum": (Colour, "blue", Colour.BLUE),
    "named tuple": (Point, [1.5, 2], Point(1.5, 2.0)),
    "recursive": (Tree, {"value": 1, "children": [{"value": 2}]}, Tree(1, [Tree(2)])),
    "number": (float, 2, 2.0),
    "flag": (bool, True, True),
    "text": (str, "ä\u2028", "ä\u2028"),
    "set": (set[int], [1, 2, 2], {1, 2}),
    "anything": (Any, {"a": [1, None]}, {"a": [1, None]}),
    "none": (None, [1], [1]),
    "object": (object, "x", "x"),
}
