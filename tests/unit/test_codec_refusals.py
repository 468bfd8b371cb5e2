"""What the codec refuses everywhere, and where it says the bad place is."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from stepwell._core.serialization.codec import encode_value
from stepwell._core.serialization.state_type import StateType
from stepwell.errors import InvalidPayload

NAN = float("nan")
NAIVE = datetime(2024, 1, 1)  # noqa: DTZ001  naive on purpose
ODD = datetime(1900, 1, 1, tzinfo=timezone(timedelta(seconds=20)))
BAD_VALUES = [
    ("a\0b", "a NUL character"),
    ("a\ud800", "a lone surrogate at position 1"),
    (NAN, "nan is not a finite number"),
    (float("-inf"), "-inf is not a finite number"),
    (10**1000, "more than 1,000 digits"),
    (-(10**6000), "more than 1,000 digits"),
    (object(), "object"),
]
BAD_IDS = ["nul", "surrogate", "nan", "inf", "1001 digits", "6001 digits", "object"]
NOT_IN_JSON = [
    datetime(2024, 1, 1, tzinfo=UTC), Decimal(1), UUID(int=1), b"x", {1}, frozenset(), timedelta(1), time(1),
    enum.Enum("Plain", "A").A, 1j, NotImplemented,  # type: ignore[attr-defined]
]


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Item:
    price: Any = None


@dataclass
class Order:
    items: list[Item] = field(default_factory=list)


@dataclass
class Plain:
    """Nothing here makes the type risky: the error must be found in the bytes."""

    note: str | None = None
    count: int | None = None
    items: list[Plain2] = field(default_factory=list)


@dataclass
class Plain2:
    price: float | None = None


class Typed(msgspec.Struct):
    when: datetime | None = None
    amount: Decimal | None = None
    clock: time | None = None
    by_key: dict[str, int] = {}
    by_time: dict[datetime, int] = {}
    free: dict[str, Any] = {}


class Model(pydantic.BaseModel):
    values: list[Any] = []
    when: datetime | None = None
    amount: Decimal | None = None


class Named(TypedDict, total=False):
    price: float | None


class Node(msgspec.Struct):
    next: Node | None = None


def refusal(kind: Any, value: object) -> str:
    with pytest.raises(InvalidPayload) as refused:
        StateType(kind).encode(value)
    return str(refused.value)


@pytest.mark.parametrize(("bad", "problem"), BAD_VALUES, ids=BAD_IDS)
def test_a_bad_value_is_refused_with_its_path(bad: object, problem: str) -> None:
    items: list[Any] = [1, 2, 3]

    with pytest.raises(InvalidPayload, match=problem) as in_value:
        encode_value({"items": [*items, {"price": bad}]}, "result")
    with pytest.raises(InvalidPayload, match=problem) as at_start:
        StateType(None).admit({"items": [*items, {"price": bad}]})
    with pytest.raises(InvalidPayload, match=problem) as in_class:
        StateType(Order).encode(Order([Item(), Item(), Item(), Item(bad)]))
    with pytest.raises(InvalidPayload, match=problem) as at_class_start:
        StateType(Order).admit({"items": [{}, {}, {}, {"price": bad}]})

    assert in_value.value.field == "result.items[3].price"
    assert {one.value.field for one in (at_start, in_class, at_class_start)} == {"state.items[3].price"}


@pytest.mark.parametrize(("bad", "problem"), BAD_VALUES[:-1], ids=BAD_IDS[:-1])
def test_a_bad_value_is_refused_in_a_pydantic_model(bad: object, problem: str) -> None:
    with pytest.raises(InvalidPayload, match=problem) as refused:
        StateType(Model).encode(Model(values=[0, [bad]]))

    assert refused.value.field == "state.values[1][0]"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Plain(note="\0"), "state.note: a NUL character, which Postgres cannot store"),
        (Plain(note="\ud800"), "state.note: a lone surrogate at position 0, which is not text"),
        (Plain(count=10**1000), "state.count: an integer of more than 1,000 digits"),
        (Plain(count=NAN), "state.count: nan is not a finite number"),  # type: ignore[arg-type]
        (Plain(items=[Plain2(), Plain2(NAN)]), "state.items[1].price: nan is not a finite number"),
    ],
)
def test_a_bad_value_is_found_even_if_no_json_check_runs(value: Plain, message: str) -> None:
    assert refusal(Plain, value) == message


@pytest.mark.parametrize("key", ["a\0", "\ud800"])
@pytest.mark.parametrize("kind", [None, Typed])
def test_a_key_that_is_not_text_is_refused(kind: Any, key: str) -> None:
    value: Any = {"m": {key: 1}} if kind is None else Typed(by_key={key: 1})

    assert refusal(kind, value).startswith("state.m: a " if kind is None else "state.by_key: a ")


@pytest.mark.parametrize("key", [1, 1.5, None, True, (1, 2), Colour.RED])
def test_a_key_that_is_not_a_string_is_refused_in_untyped_values(key: object) -> None:
    for kind, value in ((None, {"free": {key: 1}}), (Typed, Typed(free={"x": {key: 1}}))):
        assert f"the key {key!r} is not a string" in refusal(kind, value)
    with pytest.raises(InvalidPayload, match="is not a string"):
        encode_value({key: 1}, "result")


@pytest.mark.parametrize("value", NOT_IN_JSON, ids=repr)
def test_values_that_json_lacks_are_refused_in_untyped_values(value: object) -> None:
    hint = "use a typed state, or a string"

    assert refusal(None, {"a": [value]}).startswith("state.a[0]: JSON has no ")
    assert refusal(None, {"a": [value]}).endswith(hint)
    assert refusal(Typed, Typed(free={"a": value})).endswith(hint)
    with pytest.raises(InvalidPayload, match=hint):
        encode_value([value], "result")


def test_an_object_in_an_untyped_state_is_refused() -> None:
    assert refusal(None, {"item": Item()}).startswith("state.item: JSON has no ")


def test_an_object_in_a_result_is_encoded_with_its_types() -> None:
    when = datetime(2024, 1, 1, tzinfo=UTC)

    assert encode_value([Typed(when=when), Model(when=when)], "result").count("2024-01-01T00:00:00Z") == 2
    with pytest.raises(InvalidPayload, match=r"^result\[0\]\.when: the naive datetime"):
        encode_value([Typed(when=NAIVE)], "result")


@pytest.mark.parametrize(
    ("kind", "name", "bad", "problem"),
    [
        (kind, name, bad, problem)
        for kind in (Typed, Model)
        for name, bad, problem in [
            ("when", NAIVE, "the naive datetime 2024-01-01T00:00:00; give it a timezone"),
            ("when", ODD, "seconds in its UTC offset"),
            ("amount", Decimal("NaN"), "is not a finite number"),
            ("amount", Decimal("-Infinity"), "is not a finite number"),
        ]
    ],
)
def test_typed_values_without_an_exact_form_are_refused(kind: Any, name: str, bad: Any, problem: str) -> None:
    value = kind()
    setattr(value, name, bad)

    message = refusal(kind, value)

    assert message.startswith(f"state.{name}: ")
    assert problem in message


def test_a_naive_datetime_is_refused_also_as_text_and_as_a_key() -> None:
    for given in ({"when": NAIVE}, {"when": "2024-01-01T00:00:00"}):
        with pytest.raises(InvalidPayload, match=r"^state\.when: the naive datetime"):
            StateType(Typed).admit(given)
    assert refusal(Typed, Typed(by_time={NAIVE: 1})).startswith("state.by_time: the naive datetime")


def test_a_naive_time_is_accepted() -> None:
    codec = StateType(Typed)

    assert codec.decode(codec.encode(Typed(clock=time(7)))) == Typed(clock=time(7))


def test_a_typed_dict_is_checked() -> None:
    assert refusal(Named, {"price": NAN}) == "state.price: nan is not a finite number"


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def chain(length: int) -> Node:
    node = Node()
    for _ in range(length - 1):
        node = Node(node)
    return node


def test_five_hundred_levels_are_stored() -> None:
    codec = StateType(Node)

    assert encode_value(nested(500), "result").count("[") == 500
    assert codec.encode(codec.decode(codec.encode(chain(500)))).count("{") == 500


@pytest.mark.parametrize("depth", [501, 800, 100_000])
def test_more_levels_are_refused(depth: int) -> None:
    too_deep = nested(depth)

    with pytest.raises(InvalidPayload, match="nested deeper than 500 levels"):
        encode_value(too_deep, "result")
    for kind, value in ((None, {"a": too_deep}), (Typed, Typed(free={"a": too_deep}))):
        for work in (StateType(kind).admit, StateType(kind).encode):
            with pytest.raises(InvalidPayload, match="nested deeper than 500 levels"):
                work(value)


def test_a_long_chain_of_structs_is_refused() -> None:
    assert refusal(Node, chain(501)) == "state: nested deeper than 500 levels"


def test_a_value_that_contains_itself_is_refused_with_the_path_of_the_cycle() -> None:
    loop: dict[str, Any] = {"a": [1]}
    loop["a"].append(loop)
    node = Node(Node())
    node.next.next = node  # type: ignore[union-attr]
    model = Model(values=[[]])
    model.values[0].append(model.values)

    with pytest.raises(InvalidPayload, match=r"^result\.x(\.a)?: contains itself"):
        encode_value({"x": loop}, "result")
    assert refusal(None, {"x": loop}).endswith("contains itself")
    assert refusal(Node, node).endswith("contains itself")
    assert refusal(Model, model).endswith("contains itself")


def test_a_path_shows_odd_keys_in_quotes() -> None:
    assert refusal(None, {"odd key": {"": NAN}}).startswith("state['odd key']['']: ")
