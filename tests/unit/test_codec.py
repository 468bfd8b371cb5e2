"""What the codec promises about round trips, checks and definitions."""

from __future__ import annotations

import enum
import math
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell._core.serialization.codec import decode_value, encode_value
from stepwell._core.serialization.state_type import NO_DEFAULT, StateType, arguments_type
from stepwell.errors import DefinitionError, InvalidInput, InvalidPayload, InvalidState


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Card(msgspec.Struct, tag=True):
    number: str


class Cash(msgspec.Struct, tag="cash"):
    amount: Decimal


class Point(NamedTuple):
    x: int
    when: datetime


class Buyer(pydantic.BaseModel):
    name: str
    since: datetime | None = None
    tags: set[str] = set()


@dataclass
class Item:
    sku: str
    price: float | None = None


@dataclass
class Order:
    order: int
    tries: int = 0
    items: list[Item] = field(default_factory=list)


UID = UUID("12345678-1234-5678-1234-567812345678")
ORIGIN = Point(1, datetime(2024, 1, 1, tzinfo=UTC))


@dataclass
class Everything:
    colour: Colour = Colour.RED
    level: Level = Level.HIGH
    note: str | None = None
    when: datetime = datetime(2024, 5, 1, 12, 30, 0, 123456, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    day: date = date(2024, 2, 29)
    clock: time = time(7, 30)
    span: timedelta = timedelta(days=-1, seconds=3, microseconds=7)
    amount: Decimal = Decimal("12345678901234567890.10")
    uid: UUID = UID
    blob: bytes = b"\x00\xff"
    big: int = 10**30
    ratio: float = 0.1
    kind: Literal["a", "b"] = "a"
    payments: list[Card | Cash] = field(default_factory=lambda: [Card("4111"), Cash(Decimal("1.50"))])
    buyer: Buyer | None = None
    pair: tuple[int, datetime] = (1, datetime(2024, 1, 1, tzinfo=UTC))
    point: Point = ORIGIN
    seen: set[int] = field(default_factory=lambda: {1, 2})
    by_id: dict[int, Item] = field(default_factory=lambda: {7: Item("x", 1.5)})
    free: Any = None


class Node(msgspec.Struct):
    next: Node | None = None


class StructState(msgspec.Struct, rename="camel"):
    order_id: int
    item: Item | None = None


class DictState(TypedDict):
    order: int
    note: NotRequired[str]


class ModelState(pydantic.BaseModel):
    order: int
    when: datetime | None = None
    nickname: str = pydantic.Field("", validation_alias="nick", serialization_alias="NICK")
    buyers: list[Buyer] = []

    @pydantic.computed_field  # type: ignore[prop-decorator]  # mypy knows no decorated property
    @property
    def double(self) -> int:
        return 2 * self.order


class StrictModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    when: datetime


class OpenModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    order: int


NOW = datetime(2024, 5, 1, tzinfo=UTC)
ANN = Buyer(name="Ann")


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Order, Order(1, 2, [Item("a", 1.5), Item("b")])),
        (Everything, Everything()),
        (Everything, Everything(buyer=Buyer(name="Ann", since=NOW, tags={"x"}), free={"a": [1, None, 2.5]})),
        (StructState, StructState(1, Item("a"))),
        (DictState, {"order": 1, "note": "x"}),
        (ModelState, ModelState.model_validate({"order": 1, "when": NOW, "nick": "Bo", "buyers": [ANN]})),
        (StrictModel, StrictModel(when=NOW)),
        (OpenModel, OpenModel.model_validate({"order": 1, "more": "x"})),
        (None, {"a": [1, 2.5, None, True, "x", {"b": {}}]}),
        (dict, {"a": 1}),
        (dict[str, datetime], {"a": NOW}),
        (Node, Node(Node(Node()))),
    ],
)
def test_a_state_comes_back_equal(kind: Any, value: object) -> None:
    codec = StateType(kind)

    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize("text", ["", "é", "😀", "\u2028", "a\\u0000b", "\\", '"', "\x1f", "1" * 2000])
@pytest.mark.parametrize("kind", [None, Item, Buyer])
def test_any_text_without_nul_is_kept(kind: Any, text: str) -> None:
    name = "name" if kind is Buyer else "sku"
    codec = StateType(kind)

    state = codec.decode(codec.admit({name: text}))

    assert (state[name] if kind is None else getattr(state, name)) == text


@pytest.mark.parametrize("number", [-0.0, 1e22, 1.7976931348623157e308, 5e-324, 0.1, -(10**300), 2**64])
def test_numbers_survive_as_text(number: float) -> None:
    back = decode_value(encode_value(number, "result"))

    assert back == number
    assert math.copysign(1, back) == math.copysign(1, number)


@pytest.mark.parametrize("number", [1e22, 1e23, 1.7976931348623157e308, 5e-324])
def test_a_typed_float_survives_the_digits_jsonb_writes(number: float) -> None:
    stored = f'{{"sku": "a", "price": {Decimal(repr(number)):f}}}'

    assert StateType(Item).decode(stored) == Item("a", number)


def test_subclasses_of_plain_types_are_stored_as_what_they_are() -> None:
    class Text(str):
        __slots__ = ()

    class Number(float):
        pass

    value = {"a": Text("x"), "b": Number(1.5), "c": Level.HIGH, "d": MappingProxyType({})}

    assert encode_value(value, "result") == '{"a":"x","b":1.5,"c":3,"d":{}}'


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=20,
)


@given(json_values)
@settings(max_examples=150, deadline=None)
def test_every_json_value_comes_back_equal(value: object) -> None:
    assert decode_value(encode_value(value, "result")) == value


# Checks at the start


def test_a_mapping_is_accepted_with_its_defaults_filled() -> None:
    text = StateType(Order).admit({"order": 42, "items": [{"sku": "a"}]})

    assert decode_value(text) == {"order": 42, "tries": 0, "items": [{"sku": "a", "price": None}]}


def test_a_state_stored_without_a_defaulted_field_gets_it_with_the_next_step() -> None:
    codec = StateType(Order)

    text = codec.encode(codec.decode('{"order": 42}'))

    assert decode_value(text) == {"order": 42, "tries": 0, "items": []}


def test_none_is_a_state_of_defaults() -> None:
    """Scenario 10."""
    assert StateType(None).admit(None) == "{}"
    assert StateType(OpenModel).decode(StateType(OpenModel).admit({"order": 1})) == OpenModel(order=1)
    with pytest.raises(InvalidState, match="required field 'order' is missing"):
        StateType(Order).admit(None)


@pytest.mark.parametrize("kind", [Order, StructState, ModelState])
def test_an_instance_of_the_type_is_accepted(kind: Any) -> None:
    value = kind(order_id=1) if kind is StructState else kind(order=1)
    codec = StateType(kind)

    assert codec.decode(codec.admit(value)) == value


@pytest.mark.parametrize("when", [NOW, "2024-05-01T00:00:00Z"])
@pytest.mark.parametrize("kind", [Everything, ModelState, StrictModel, dict[str, datetime]])
def test_a_datetime_is_accepted_as_itself_and_as_text(kind: Any, when: object) -> None:
    codec = StateType(kind)
    mapping = {"order": 1, "when": when} if kind is ModelState else {"when": when}

    state = codec.decode(codec.admit(mapping))

    assert (state["when"] if isinstance(state, dict) else state.when) == NOW


def test_objects_inside_a_mapping_are_accepted() -> None:
    codec = StateType(Everything)

    state = codec.decode(codec.admit({"buyer": Buyer(name="Ann"), "by_id": {"3": Item("x")}, "payments": []}))

    assert state == Everything(buyer=Buyer(name="Ann"), by_id={3: Item("x")}, payments=[])


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Order, {"ordr": 1}, "state: unknown field 'ordr'; did you mean 'order'?"),
        (Order, {"order": 1, 2: 3}, "state: unknown field 2"),
        (Order, {"order": 1, "items": [{"sku": "a", "prise": 2}]},
         "state.items[0]: unknown field 'prise'; did you mean 'price'?"),
        (Everything, {"payments": [{"type": "cash", "amont": "1"}]},
         "state.payments[0]: unknown field 'amont'; did you mean 'amount'?"),
        (StructState, {"order_id": 1}, "state: unknown field 'order_id'; did you mean 'orderId'?"),
        (DictState, {"order": 1, "nte": ""}, "state: unknown field 'nte'; did you mean 'note'?"),
        (ModelState, {"ordr": 1}, "state: unknown field 'ordr'; did you mean 'order'?"),
        (Everything, {"buyer": {"nme": "x"}}, "state.buyer: unknown field 'nme'; did you mean 'name'?"),
        (Order, {"order": "42"}, "state.order: expected int, got str"),
        (Order, {"order": 1.0}, "state.order: expected int, got float"),
        (Order, {"order": True}, "state.order: expected int, got bool"),
        (Order, {"order": 1, "items": [{"sku": "a"}, {"sku": 2}]},
         "state.items[1].sku: expected str, got int"),
        (Order, {"order": 1, "items": [{}]}, "state.items[0]: required field 'sku' is missing"),
        (Everything, {"note": UUID(int=1)}, "state.note: expected str | null, got uuid"),
        (dict[str, int], {"a": "x"}, "state[...]: expected int, got str"),
        (ModelState, {"order": "x"},
         "state.order: Input should be a valid integer, unable to parse string as an integer"),
        (Everything, {"buyer": {"name": 3}}, "state.buyer.name: Input should be a valid string"),
        (Order, [1], "state: expected Order or a mapping, got list"),
        (Order, Item("a"), "state: expected Order or a mapping, got Item"),
        (None, "x", "state: expected dict or a mapping, got str"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_with_its_path(kind: Any, value: object, message: str) -> None:
    with pytest.raises(InvalidState) as refused:
        StateType(kind).admit(value)

    assert str(refused.value) == message
    assert refused.value.field == message.partition(":")[0]


def test_a_model_that_allows_extra_fields_keeps_them() -> None:
    codec = StateType(OpenModel)

    assert codec.decode(codec.admit({"order": 1, "more": [1]})).model_extra == {"more": [1]}


def test_the_field_is_named_in_the_error() -> None:
    with pytest.raises(InvalidState, match=r"^arguments\.order: expected int"):
        StateType(Order, field="arguments").admit({"order": "x"})


# After a step


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (Order, Order("42"), "state.order: expected int, got str"),  # type: ignore[arg-type]
        (Order, Order(1, items=[Item(None)]), "state.items[0].sku: expected str, got null"),  # type: ignore[arg-type]
        (StructState, StructState("x"), "state.orderId: expected int, got str"),  # type: ignore[arg-type]
        (Order, Item("a"), "state: expected Order, got Item"),
        (Order, {"order": 1}, "state: expected Order, got dict"),
        (DictState, {"order": 1, "nte": 2}, "state: unknown field 'nte'; did you mean 'note'?"),
        (None, [1], "state: expected dict, got list"),
        (OpenModel, OpenModel.model_construct(order="x"),
         "state.order: Input should be a valid integer, unable to parse string as an integer"),
    ],
)
def test_a_state_that_would_not_decode_is_not_encoded(kind: Any, value: object, message: str) -> None:
    with pytest.raises(InvalidState) as refused:
        StateType(kind).encode(value)

    assert str(refused.value) == message


def test_a_subclass_is_not_encoded_since_its_own_fields_would_be_lost() -> None:
    @dataclass
    class Special(Item):
        gift: bool = True

    with pytest.raises(InvalidState, match=r"expected Item, got .*Special"):
        StateType(Item).encode(Special("a"))


# From the store


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(Order, Order(1)), (DictState, {"order": 1}), (ModelState, ModelState.model_validate({"order": 1}))],
)
def test_stored_fields_that_the_type_no_longer_has_are_ignored(kind: Any, expected: object) -> None:
    assert StateType(kind).decode('{"order": 1, "dropped": {"a": 1}}') == expected


def test_removed_fields_are_ignored_even_by_types_that_forbid_extra_ones() -> None:
    arguments = arguments_type("send", {"to": (str, NO_DEFAULT)})

    assert StateType(arguments).decode('{"to": "a", "dropped": 1}') == arguments(to="a")
    assert StateType(StrictModel).decode('{"when": "2024-05-01T00:00:00Z", "x": 1}') == StrictModel(when=NOW)


@pytest.mark.parametrize("kind", [Order, None, ModelState, Node, StrictModel])
@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "1", '{"order": "x", "when": 1, "next": 1}1', '"\ud800"', "[" * 5000, '{"next":' * 3000],
    ids=range(8),
)
def test_a_stored_text_that_cannot_be_read_is_an_invalid_state(kind: Any, text: str) -> None:
    with pytest.raises(InvalidState, match=r"^state"):
        StateType(kind).decode(text)


@pytest.mark.parametrize("text", ["", "{", '"\ud800"', "[" * 5000, "9" * 5000])
def test_a_stored_value_that_cannot_be_read_is_an_invalid_payload(text: str) -> None:
    with pytest.raises(InvalidPayload, match="cannot be read"):
        decode_value(text)


# The author's code


@dataclass
class Picky:
    order: int

    def __post_init__(self) -> None:
        if self.order == 1:
            raise ValueError("one is taken")
        if self.order == 2:
            raise KeyError("two")


class PickyModel(pydantic.BaseModel):
    order: int

    @pydantic.field_validator("order")
    @classmethod
    def not_these(cls, order: int) -> int:
        if order == 1:
            raise ValueError("one is taken")
        if order == 2:
            raise KeyError("two")
        return order

    @pydantic.field_serializer("order")
    def dump(self, order: int) -> int:
        if order == 3:
            raise KeyError("three")
        return order


@pytest.mark.parametrize("kind", [Picky, PickyModel])
@pytest.mark.parametrize(("order", "problem"), [(1, "one is taken"), (2, "KeyError: 'two'")])
def test_errors_of_the_authors_validators_become_invalid_state(kind: Any, order: int, problem: str) -> None:
    codec = StateType(kind)
    wrong = kind.model_construct(order=order) if kind is PickyModel else Picky(0)
    wrong.order = order

    encoders: list[tuple[Any, object]] = [
        (codec.admit, {"order": order}), (codec.decode, f'{{"order": {order}}}'), (codec.encode, wrong)]
    for encode, value in encoders:
        with pytest.raises(InvalidState, match=problem) as refused:
            encode(value)
        assert isinstance(refused.value.__cause__, (ValueError, KeyError))
        assert not isinstance(refused.value.__cause__, msgspec.ValidationError)


def test_errors_of_the_authors_serializers_become_invalid_state() -> None:
    with pytest.raises(InvalidState, match="three"):
        StateType(PickyModel).encode(PickyModel(order=3))


class Moody:
    @property
    def order(self) -> int:
        raise RuntimeError("not today")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python 3.13 tells of the first look
def test_errors_of_the_authors_properties_become_invalid_state() -> None:
    kind: Any = dataclass(type("Moodier", (), {"__annotations__": {"order": int}}))
    value = kind(1)
    kind.order = Moody.order
    value.__dict__.clear()

    with pytest.raises(InvalidInput, match="not today"):
        StateType(kind).encode(value)


# Definitions


class Opaque:
    pass


@dataclass
class HoldsOpaque:
    x: list[Opaque]


@dataclass
class Misspelt:
    x: Nope  # type: ignore[name-defined]  # noqa: F821  the promise is about this


class Row(msgspec.Struct, array_like=True):
    x: int


@dataclass
class TwoShapes:
    x: Item | Order


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Opaque, "Opaque.*use a dataclass, a msgspec.Struct, a TypedDict, a pydantic model or a dict"),
        (HoldsOpaque, "HoldsOpaque holds Opaque"),
        (Misspelt, "Nope"),
        (int, "int cannot be a state"),
        (list[int], "list cannot be a state"),
        (Point, "Point cannot be a state"),
        (Row, "Row cannot be a state"),
        (dict[int, str], "dict cannot be a state"),
        (pydantic.RootModel[int], "cannot be a state"),
        (TwoShapes, "more than one dataclass"),
    ],
)
def test_a_class_that_cannot_be_a_state_is_refused_by_name(kind: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        StateType(kind)


def test_the_arguments_of_a_job_are_checked_like_a_state() -> None:
    tags = ["a"]
    parameters = {"to": (str, NO_DEFAULT), "tags": (list[str], tags), "at": (Any, None)}
    kind = arguments_type("send_mail", parameters)
    codec = StateType(kind, field="arguments")

    made = codec.decode(codec.admit({"to": "ann"}))

    assert (made.to, made.tags, made.at) == ("ann", ["a"], None)
    assert made.tags is not tags
    with pytest.raises(InvalidState, match=r"arguments: unknown field 'too'; did you mean 'to'\?"):
        codec.admit({"too": "ann"})
    with pytest.raises(InvalidState, match="arguments: required field 'to' is missing"):
        codec.admit({})


def test_pydantic_is_never_imported_for_applications_without_it() -> None:
    script = ("import sys; from stepwell._core.serialization.codec import *; "
              "from stepwell._core.serialization.state_type import *; s = StateType(None); "
              "s.decode(s.admit({'a': 1})); encode_value(1, 'r'); sys.exit('pydantic' in sys.modules)")

    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
