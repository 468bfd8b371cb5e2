"""SQL checks replies by the schema that msgspec writes: it takes what the type takes, and refuses what it refuses.

Exceptions. SQL takes more, and Python reads the reply again before the step runs: what a schema does not say
(`__post_init__`; keys of dicts that are no texts; base64, durations, times of day; a `datetime` that need not have a
time zone, of which msgspec says only that it is a text), `pattern`, and texts of a `format` that Postgres reads more
generously (no time zone, hour 24, UUIDs in braces, decimals with blanks). SQL takes less: what pydantic would convert
(the text "1", or 1.0, for an int), and numbers that no `numeric` holds.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import date
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID

import asyncpg
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell._core.replies import reply_type
from stepwell.errors import InvalidInput
from tests.asks.kinds import (
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

TYPES: dict[str, Any] = {
    **{how: kind for how, (kind, _, _) in TYPED.items()},
    "optional number": int | None, "texts": list[str], "numbers": dict[str, int], "loose list": list, "loose": dict,
    "part": Part, "limits": Short, "null": type(None), "number or flag": float | bool, "ones": Literal[1, 2, "x"],
    "deep": dict[str, list[tuple[int, Score | None]]], "colours": list[Colour], "team": Team, "points": list[Point],
    "choice of many": Approved | Declined | None, "moment": Moment, "day": date, "id": UUID, "money": Decimal,
}  # fmt: skip

EXAMPLES: list[tuple[str, Any]] = [
    ("money", "12.50"), ("money", 12), ("money", 1.5), ("money", "x"), ("money", None), ("money", True),
    *(("moment", {"at": at}) for at in (
        "2026-01-01T12:00:00Z", "2026-01-01 12:00:00+02:00", "2026-01-01T12:00:00.123456-05:00", "2026-13-01T12:00:00Z",
        "now", "2026-01-01", 17, None,
    )),
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
FREE = {"moment", "day", "id", "money", "struct", "model", "list of models", "dict of models", "team"}  # by EXAMPLES


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


async def test_sql_and_the_type_agree_about_whatever_json_there_is(sql: asyncpg.Connection) -> None:
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
    """Scenario 65: a type that holds itself is no way to exhaust the server's stack: so deep, it is refused."""
    good, bad, too_deep = await problems(sql, [
        ("recursive", tree(80, 1)), ("recursive", tree(80, "x")), ("recursive", tree(248, 1)),
    ])  # fmt: skip

    assert good is None
    assert str(bad).endswith("value: expected integer, got string")
    assert too_deep == "reply: is nested too deep to be checked in SQL; answer where its type is known"
