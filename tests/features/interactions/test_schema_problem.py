"""SQL checks replies by the schema that msgspec writes: it takes what the type takes, and refuses what it refuses.

Exceptions. SQL takes more, and Python reads the reply again before the step runs: what a schema does not say
(`__post_init__`; keys of dicts that are no texts; base64, durations, times of day; a `datetime` that need not have a
time zone, of which msgspec says only that it is a text), `pattern`, and texts of a `format` that Postgres reads more
generously (no time zone, hour 24, UUIDs in braces, decimals with blanks). SQL takes less: what pydantic would convert
(the text "1", or 1.0, for an int), and numbers that no `numeric` holds.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import AsyncIterator, Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import asyncpg
import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell._core.serialization.reply_type import reply_type
from stepwell.errors import InvalidInput
from tests.features.interactions.kinds import (
    PAYMENT,
    TYPED,
    Approved,
    Colour,
    Declined,
    Moment,
    Part,
    Point,
    Score,
    Short,
    Team,
)
from tests.support.shared_database import shared_database


class Left(msgspec.Struct, tag=True):
    to: Left | Right | None = None


class Right(msgspec.Struct, tag=True):
    to: Left | Right | None = None
    weight: int = 0


class Loose(pydantic.BaseModel):
    to: Loose | Tight | None = None
    weight: int = 0


class Tight(pydantic.BaseModel):
    to: Loose | Tight | None = None
    weight: str = ""


class Card(pydantic.BaseModel):
    kind: Literal["card", "old card"]
    number: int


class Cash(pydantic.BaseModel):
    kind: Literal["cash"]
    coins: list[int] = []


class Paid(pydantic.BaseModel):
    by: list[Card | Cash | int | None] = []
    of: Annotated[Card | Cash, pydantic.Field(discriminator="kind")] | None = None


KINDS = [msgspec.defstruct(f"Kind{n}", [("number", int)], tag=f"k{n}", tag_field="kind") for n in range(8)]
TYPES: dict[str, Any] = {
    **{how: kind for how, (kind, _, _) in TYPED.items()},
    "optional number": int | None, "texts": list[str], "numbers": dict[str, int], "ratios": list[float],
    "loose list": list, "loose": dict,
    "part": Part, "limits": Short, "null": type(None), "number or flag": float | bool, "ones": Literal[1, 2, "x"],
    "deep": dict[str, list[tuple[int, Score | None]]], "colours": list[Colour], "team": Team, "points": list[Point],
    "choice of many": Approved | Declined | None, "moment": Moment, "day": date, "id": UUID, "money": Decimal,
    "tree": Left | Right, "loose tree": Loose, "paid": Paid,
    "tagged or not": dict[str, Left | Right | int | str | None],
}  # fmt: skip

EXAMPLES: list[tuple[str, Any]] = [
    ("money", "12.50"), ("money", 12), ("money", 1.5), ("money", "x"), ("money", None), ("money", True),
    *(("moment", {"at": at}) for at in (
        "2026-01-01T12:00:00Z", "2026-01-01 12:00:00+02:00", "2026-01-01T12:00:00.123456-05:00", "2026-13-01T12:00:00Z",
        "now", "2026-01-01", 17, None,
    )),
    *(("ratios", [number]) for number in (10**308, -10**308, 10**309, -10**309, 10**900, 1.7976931348623157e308)),
    ("number or flag", 10**309), ("numbers", {"x": 10**900}), ("money", 10**309), ("loose list", [10**309]),
    ("limits", {"code": "ab", "count": 1, "ratio": -10**309}),
    ("day", "2026-02-28"), ("day", "2026-02-30"), ("day", "today"), ("day", "1.2.2026"), ("day", 20260101),
    ("id", "8f14e45f-ceea-467f-a0e0-0123456789ab"), ("id", "8f14e45f"), ("id", 5),
    ("limits", {"code": "ab", "count": 1}), ("limits", {"code": "a", "count": 1}),
    ("limits", {"code": "abcd", "count": 1}), ("limits", {"code": "äöü", "count": 9}),
    ("limits", {"code": "ab", "count": 0}), ("limits", {"code": "ab", "count": 10}),
    ("limits", {"code": "ab", "count": 1, "ratio": 0}), ("limits", {"code": "ab", "count": 1, "ratio": 1}),
    ("limits", {"code": "ab", "count": 1, "ratio": 1.01}), ("limits", {"code": "ab", "count": 1, "parts": [1, 2]}),
    ("limits", {"code": "ab", "count": 1, "parts": [1, 2, 3]}), ("limits", {"code": "ab", "count": 1.5}),
    ("struct", PAYMENT), ("struct", {**PAYMENT, "more": 1}), ("struct", {**PAYMENT, "tags": ["a", 1]}),
    ("dataclass", {"name": "a", "more": 1}), ("dataclass", {"name": "a", "points": 1.0}),
    ("dataclass", {"name": "a", "points": 1.5}), ("union", {"type": "approved", "by": "a"}),
    ("union", {"type": "declined", "by": "a"}), ("union", {"by": "a"}), ("union", {"type": "other"}),
    ("enum", "green"), ("enum", "red"), ("enum", 1), ("literal", "maybe"), ("ones", 1), ("ones", "x"), ("ones", 3),
    ("ones", "1"), ("tuple", [1]), ("tuple", [1, "a", 2]), ("tuple", ["a", 1]), ("named tuple", [1]),
    ("recursive", {"value": 1, "children": [{"value": 2, "children": [{"value": "x"}]}]}),
    ("team", {"lead": {"name": "a"}, "others": [{"name": "b", "born": "2000-01-01"}]}),
    ("team", {"lead": {"name": "a"}, "others": [{"name": 2}]}), ("team", {"lead": None}), ("team", {}),
    ("dict of models", {"x": {"lead": {"born": None}}}), ("dict of models", {"x": {"lead": {"name": "a"}}}),
    ("list of models", [{"name": "a", "born": "yesterday"}]), ("number or flag", "x"), ("null", None), ("null", 0),
    *(("tree", value) for value in (
        {"type": "Left", "to": {"type": "Right", "to": None, "weight": 3}}, {"to": None}, {"type": "Up"}, {"type": 1},
        {"type": "Left", "to": {"type": "Right", "weight": "x"}}, {"type": "Left", "weight": "x"}, {"type": "Right"},
        {"type": "Left", "to": {}}, {"type": "Left", "to": 1}, {"type": None}, {"type": {"type": "Left"}}, [], None,
    )),
    *(("paid", {how: value}) for how in ("by", "of") for value in (
        [{"kind": "card", "number": 1}, {"kind": "old card", "number": 1}, {"kind": "cash"}, 1, None],
        [{"kind": "card"}], [{"kind": "cash", "coins": [1, "x"]}], [{"kind": "cash", "number": "x"}], ["x"], [{}],
        [[]], [{"kind": "gold"}],
        {"kind": "card", "number": 1}, {"kind": "old card", "number": 1}, {"kind": "cash"}, {"kind": "gold"}, {}, None,
        {"kind": "cash", "coins": [1, "x"]}, {"kind": "cash", "number": "x"}, {"kind": "card"}, {"kind": 1}, "x",
    )),
    *(("tagged or not", {"a": value}) for value in ({"type": "Left"}, {"type": "Up"}, {}, 1, "x", None, [], True)),
    ("part", {}), ("part", {"weight": "x"}), ("part", {"weight": 1, "more": 2}), ("typed dict", {"street": "a"}),
]  # fmt: skip

TEXTS = st.text(st.characters(exclude_categories=["Cs"], min_codepoint=1), max_size=3)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**40) | st.sampled_from([0.5, 1.0, -2.25]) | TEXTS
    | st.sampled_from(["a", "red", "yes", "approved", "2026-01-01", "1.5"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["name", "points", "value", "children", "type", "by", "reason", "street", "number"]), inner,
        max_size=4,
    ),
    max_leaves=8,
)  # fmt: skip
FREE = {  # by EXAMPLES
    "loose tree", "paid", "moment", "day", "id", "money", "struct", "model", "list of models", "dict of models", "team",
}  # fmt: skip


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with shared_database() as made:
        yield made


@pytest.fixture
async def sql(url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(url)
    yield connection
    await connection.close()


async def problems(sql: asyncpg.Connection, cases: list[tuple[str, Any]]) -> list[str | None]:
    """What SQL has against each value, by the schema of its type."""
    schemas = [reply_type(TYPES[how]).schema for how, _ in cases]
    rows = await sql.fetch(
        "select stepwell._reply_problem(c.schema::jsonb, c.value::jsonb) as problem"
        " from unnest($1::text[], $2::text[]) with ordinality as c(schema, value, place) order by c.place",
        schemas, [json.dumps(value) for _, value in cases],
    )  # fmt: skip
    return [row["problem"] for row in rows]


def fits(how: str, value: Any) -> bool:
    """Whether the type itself takes the value."""
    try:
        reply_type(TYPES[how]).decode(msgspec.json.encode(value).decode())
    except InvalidInput:
        return False
    return True


async def test_sql_and_the_type_agree_about_examples(sql: asyncpg.Connection) -> None:
    """Scenarios 58, 65; Gaps 7, 10: taken and refused alike; a refusal names its place."""
    cases = EXAMPLES + [(how, value) for how, (_, value, _) in TYPED.items()]

    found = await problems(sql, cases)

    wrong = [(*case, problem) for case, problem in zip(cases, found, strict=True) if (problem is None) != fits(*case)]
    assert wrong == []
    assert all(problem is None or problem.startswith("reply") for problem in found)
    assert sum(problem is None for problem in found) > 40


async def test_sql_and_the_type_agree_about_any_json(sql: asyncpg.Connection) -> None:
    """Scenario 65, Gap 10: hundreds of JSON values against every type, none of which knows of the other's code."""
    collected: list[Any] = []

    @settings(max_examples=150, deadline=None, database=None, suppress_health_check=[*HealthCheck])
    @given(VALUES)
    def collect(value: Any) -> None:
        collected.append(value)

    collect()
    cases = [(how, value) for how in TYPES if how not in FREE for value in collected]
    found = await problems(sql, cases)

    wrong = [(*case, problem) for case, problem in zip(cases, found, strict=True) if (problem is None) != fits(*case)]
    assert wrong[:5] == []
    assert sum(problem is None for problem in found) > 100


def tree(depth: int, leaf: object) -> dict[str, Any]:
    made: dict[str, Any] = {"value": leaf}
    for _ in range(depth):
        made = {"value": 1, "children": [made]}
    return made


async def test_a_deep_reply_is_checked_to_its_depth(sql: asyncpg.Connection) -> None:
    """Scenario 65: a recursive type cannot exhaust the server's stack: at this depth it is refused."""
    good, bad, too_deep = await problems(sql, [
        ("recursive", tree(80, 1)), ("recursive", tree(80, "x")), ("recursive", tree(248, 1)),
    ])  # fmt: skip

    assert good is None
    assert str(bad).endswith("value: expected integer, got string")
    assert too_deep == "reply: is nested too deep to be checked in SQL; complete it where its type is known"


async def test_a_reply_of_very_many_values_is_not_checked_in_sql(sql: asyncpg.Connection) -> None:
    """H3: a megabyte of small numbers in lists kept a backend busy for a second."""
    schema = json.dumps({"type": "array", "items": {"type": "array", "items": {"type": "number"}}})
    many, more = [[1.5] * 119] * 99, [[1.5] * 119] * 100  # 11,881 and 12,001 values

    found = [await sql.fetchval("select stepwell._reply_problem($1, $2)", schema, json.dumps(reply))
             for reply in (many, more, [["x"]])]  # fmt: skip
    any_value = await sql.fetchval("select stepwell._reply_problem('{}', $1)", json.dumps(more))

    refusal = "reply: has more than 12000 values, too many to be checked in SQL; complete it where its type is known"
    assert found == [None, refusal, "reply[0][0]: expected number, got string"]
    assert any_value is None


QUICKLY = "set statement_timeout = '1s'"  # ten times as long as the slowest of these may take
TAKES_TOO_LONG = "reply: takes too long to be checked in SQL; complete it where its type is known"


def path_of(kind: str, depth: int, leaf: dict[str, Any]) -> dict[str, Any]:
    made = leaf
    for _ in range(depth):
        made = {"type": kind, "to": made}
    return made


async def test_a_tagged_union_is_checked_in_one_branch(sql: asyncpg.Connection) -> None:
    """H3: each branch was tried at each level, before the tag was read: 200 bytes kept a backend busy without bound."""
    await sql.execute(QUICKLY)

    good, bad, other = await problems(sql, [
        ("tree", path_of("Right", 80, leaf))
        for leaf in ({"type": "Left"}, {"type": "Right", "weight": "x"}, {"type": "Up"})
    ])  # fmt: skip

    assert good is None
    assert bad == f"reply{'.to' * 80}.weight: expected integer, got string"
    assert other == f"reply{'.to' * 80}.type: expected one of [\"Right\"]"


@pytest.mark.parametrize("depth", [2, 12, 40, 100])
async def test_branches_without_a_tag_are_tried_within_a_budget(sql: asyncpg.Connection, depth: int) -> None:
    """H3: twice as many at each level; what takes too long is refused."""
    await sql.execute(QUICKLY)
    leaf: dict[str, Any] = {"weight": [1]}
    for _ in range(depth):
        leaf = {"to": leaf}

    [found] = await problems(sql, [("loose tree", leaf)])

    assert found == ("reply.to: is none of what is allowed" if depth == 2 else TAKES_TOO_LONG)


LONG = "x" * 900_000
AGAIN = {"$defs": {"it": {"anyOf": [
    {"type": "string", "maxLength": 1}, {"type": "string", "format": "date-time"}, {"type": "string", "format": "uuid"},
    {"type": "object", "properties": {"to": {"$ref": "#/$defs/it"}}},
    {"type": "object", "additionalProperties": {"$ref": "#/$defs/it"}, "required": ["to"]},
]}}, "$ref": "#/$defs/it"}  # fmt: skip
COSTLY: dict[str, tuple[dict[str, Any], Any]] = {
    "members of eight types": (
        {"items": {"anyOf": [
            {"properties": {"a": {"type": "integer"}, "kind": {"enum": [kind]}}} for kind in "abcdefgh"]}},
        [{"a": 1, "kind": "h"}] * 3_900,
    ),
    "a long text, looked at often": (AGAIN, path_of("", 100, {"to": LONG})),
    "many members, looked at often": (AGAIN, path_of("", 40, dict.fromkeys(["to", *map(str, range(10_000))], 1))),
    "values of a long enum": ({"items": {"enum": [f"member {n}" for n in range(2_000)]}}, ["member 1999"] * 11_000),
    "objects of a type with many fields": (
        {"items": {"properties": {f"field_{n}": {"type": "integer"} for n in range(1_000)}, "type": "object"}},
        [{}] * 11_000,
    ),
    "sixty large objects": (
        {"anyOf": [{"type": "object", "additionalProperties": {"type": "integer", "maximum": n}} for n in range(60)]},
        {**dict.fromkeys(map(str, range(10_000)), 0), "the longest": 99},
    ),
    "sixty tags": (
        {"items": {"anyOf": [{"properties": {"kind": {"const": n}, "a": {}}} for n in range(60)]}},
        [{"kind": 59, "a": 1}] * 3_900,
    ),
    "lists in lists above a long text": (
        {"$defs": {"it": {"items": {"$ref": "#/$defs/it"}}}, "$ref": "#/$defs/it"},
        functools.reduce(lambda inner, _: [inner], range(120), ["x" * 900] * 1_000),
    ),
    "a type that refers to itself": ({"$defs": {"it": {"$ref": "#/$defs/it"}}, "$ref": "#/$defs/it"}, 1),
    "texts that are no dates": (
        {"items": {"anyOf": [*[{"type": "string", "format": "date"}] * 9, {"type": "string"}]}}, ["x"] * 11_000,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", COSTLY)
async def test_a_reply_that_takes_too_long_to_check_is_refused(sql: asyncpg.Connection, case: str) -> None:
    """H3: whatever the type and the size are; the work is counted, not the time, so that every server says the same."""
    schema, reply = COSTLY[case]
    await sql.execute(QUICKLY)

    found = await sql.fetchval("select stepwell._reply_problem($1, $2)", json.dumps(schema), json.dumps(reply))

    assert found == TAKES_TOO_LONG


ORDINARY: dict[str, tuple[Any, Any]] = {
    "tagged": (list[functools.reduce(operator.or_, KINDS)], [{"kind": "k7", "number": 1}] * 3_000),
    "optional numbers": (list[int | None], [1, None] * 5_900),
    "dates": (list[datetime], ["2026-01-01T12:00:00Z"] * 11_900),
    "lists": (list[list[int]], [[1]] * 5_900),
    "empty lists": (list[list[int]], [[]] * 11_900),
    "members": (dict[str, int], {f"key {n}": n for n in range(11_900)}),
    "a long text": (dict[str, str | None], {"a": LONG}),
}


@pytest.mark.parametrize("case", ORDINARY)
async def test_twelve_thousand_values_of_ordinary_types_are_checked(sql: asyncpg.Connection, case: str) -> None:
    kind, reply = ORDINARY[case]
    await sql.execute(QUICKLY)

    found = await sql.fetchval(
        "select stepwell._reply_problem($1, $2)", json.dumps(msgspec.json.schema(kind)), json.dumps(reply)
    )

    assert found is None


async def test_a_long_key_costs_nothing_and_is_shown_short(sql: asyncpg.Connection) -> None:
    """H3: it was copied for each item below it, 11,900 times, in 700 ms."""
    key = "k" * 950_000
    schema = json.dumps(msgspec.json.schema(dict[str, list[int]]))
    await sql.execute(QUICKLY)

    good, bad = [await sql.fetchval("select stepwell._reply_problem($1, $2)", schema, json.dumps({key: items}))
                 for items in ([1] * 11_900, [1, "x"])]  # fmt: skip

    assert good is None
    assert bad == f"reply.{'k' * 100}[1]: expected integer, got string"


async def test_a_deep_path_is_shown_by_its_end(sql: asyncpg.Connection) -> None:
    value: Any = 1
    for _ in range(60):
        value = {"k" * 9_000: value}
    schema = {"$defs": {"it": {"type": "object", "additionalProperties": {"$ref": "#/$defs/it"}}}, "$ref": "#/$defs/it"}

    found = await sql.fetchval("select stepwell._reply_problem($1, $2)", json.dumps(schema), json.dumps(value))

    assert found.endswith(f".{'k' * 100}: expected object, got number")
    assert len(found) < 1_100
