"""Types of replies that are expensive for a backend to check, and replies of them, for `benchmarks.bodies`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal

import msgspec
import pydantic

MB = 1024 * 1024
LONG = MB - 10_000  # bytes of one text or key


class Left(msgspec.Struct, tag=True):
    to: Left | Right | None = None


class Right(msgspec.Struct, tag=True):
    to: Left | Right | None = None
    weight: int = 0


class Loose(pydantic.BaseModel):
    """Only its fields distinguish it from Tight."""

    to: Loose | Tight | None = None
    weight: int = 0


class Tight(pydantic.BaseModel):
    to: Loose | Tight | None = None
    weight: str = ""


class Card(pydantic.BaseModel):
    kind: Literal["card"]
    number: int


class Cash(pydantic.BaseModel):
    kind: Literal["cash"]
    number: int


class Cheque(pydantic.BaseModel):
    kind: Literal["cheque"]
    number: int


class Paid(pydantic.BaseModel):
    """A union without a discriminator: its tags are looked for."""

    by: list[Card | Cash | Cheque]


class Sale(msgspec.Struct, tag=True, tag_field="kind"):
    number: int


class Refund(msgspec.Struct, tag=True, tag_field="kind"):
    number: int


TYPES: dict[str, Any] = {
    "a tagged union that holds itself": Left | Right, "a union that holds itself, without tags": Loose,
    "a union without a discriminator": Paid, "a tagged union": list[Sale | Refund],
    "lists by names": dict[str, list[int]], "optional numbers": dict[str, list[int | None]],
    "times": dict[str, list[datetime | None]], "empty lists": dict[str, list[list[int]]],
    "texts by names": dict[str, str],
}  # fmt: skip


def nested(depth: int, leaf: Any, **more: Any) -> Any:
    for _ in range(depth):
        leaf = {**more, "to": leaf}
    return leaf


def worst_replies() -> Iterator[tuple[str, str, str]]:
    """The type, the name of the body, and its text. Some fit, others are refused in the end."""
    cases: list[tuple[str, str, Any]] = [
        *(("a tagged union that holds itself", f"{depth} deep, {weight!r}",
           nested(depth, {"type": "Right", "weight": weight}, type="Right"))
          for depth in (14, 60, 150, 240) for weight in (1, "x")),
        *(("a tagged union that holds itself", f"{depth} deep, no tags", nested(depth, {})) for depth in (14, 240)),
        *(("a union that holds itself, without tags", f"{depth} deep", nested(depth, {"weight": [1]}))
          for depth in (4, 10, 14, 60, 200)),
        ("a union that holds itself, without tags", "a long text below", nested(60, {"weight": "x" * LONG, "more": 1})),
        ("a union that holds itself, without tags", "a long key below", nested(60, {"x" * LONG: 1, "weight": []})),
        *(("a union without a discriminator", f"{number} objects", {"by": [{"kind": "cheque", "number": 1}] * number})
          for number in (1_000, 3_900)),
        ("a union without a discriminator", "no tags", {"by": [{"number": 1}] * 3_900}),
        ("a tagged union", "3,900 objects", [{"kind": "Sale", "number": 1}] * 3_900),
        ("a tagged union", "3,900 objects, the last one wrong",
         [*[{"kind": "Sale", "number": 1}] * 3_899, {"kind": "x"}]),
        *(("lists by names", f"a long key, {number:,} items", {"k" * (LONG - 3 * number): [1] * number})
          for number in (3_000, 11_990)),
        ("lists by names", "a long key, the last item wrong", {"k" * (LONG - 40_000): [*[1] * 11_980, "x"]}),
        ("lists by names", "many keys", {f"key {n}": [] for n in range(11_990)}),
        ("optional numbers", "nulls and numbers", {"a": [1, None] * 5_990}),
        ("optional numbers", "too many", {"a": [1, None] * 60_000}),
        ("times", "times", {"a": ["2026-01-01T12:00:00Z"] * 11_990}), ("times", "no times", {"a": ["x"] * 11_990}),
        ("empty lists", "empty lists", {"a": [[]] * 11_990}),
        ("texts by names", "long texts", {str(n): "x" * 1_000 for n in range(1_000)}),
    ]  # fmt: skip
    for kind, what, reply in cases:
        yield kind, what, json.dumps(reply, separators=(",", ":"))


def worst_batches() -> Iterator[tuple[str, str, str]]:
    """The function, the name of the body, and its text: about a megabyte, or as many entries as are accepted."""
    state, payload = json.dumps({"a": [1, 2], "b": "x" * 50}), '{"a": [1, 2]}'
    good = {
        "start_many": f'{{"machine": "Asker", "state": {state}}}',
        "signal_many": f'{{"key": "other", "name": "s", "payload": {payload}}}',
    }
    for function, entry in good.items():
        most = min(9_999, MB // (len(entry) + 2))
        for what, entries in {
            "empty entries, a megabyte": ["{}"] * (MB // 3), "numbers, a megabyte": ["1"] * (MB // 2),
            "empty entries": ["{}"] * 10_000, "the last one wrong": [*[entry] * most, "{}"],
            "too many, the last one wrong": [*[entry] * (MB // (len(entry) + 2)), "{}"],
            "one with many fields": ["{" + ",".join(f'"{n:x}":0' for n in range(MB // 10)) + "}"],
            "one with a long field": [f'{{"{"k" * LONG}": 1}}'], "one with a long text": [f'{{"key": "{"k" * LONG}"}}'],
            "long numbers": [f'{{"version": {"9" * 900}}}'] * (MB // 920),
            "a wrong one before many": ["{}", *[entry] * most],
        }.items():  # fmt: skip
            yield function, what, f"[{','.join(entries)}]"
