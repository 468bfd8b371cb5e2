"""How the world is after a scenario: what it returned, how every instance ended, what was recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepwell._core.records import Instance
from stepwell.client import Handle
from stepwell.testing.effects import Effect

if TYPE_CHECKING:
    from stepwell.testing.harness import Harness

Leaves = dict[str, Any]
"""A value taken apart: what is at which place."""


@dataclass(frozen=True, slots=True)
class World:
    """One run's end. `returned` and `instances` are taken apart into leaves, so that single places can be compared."""

    returned: Leaves
    instances: dict[str, Leaves]
    effects: list[Effect]


async def look_at(h: Harness, returned: Any) -> World:
    """The world of a harness; instances by machine and key, or by the order of their start."""
    rows = sorted([row async for row in h.engine.insights.each()], key=lambda row: row.id)
    numbers: Counter[str] = Counter()
    instances = {}
    for row in rows:
        numbers[row.machine] += 1
        name = f"{row.machine} {row.key!r}" if row.key is not None else f"{row.machine} ({numbers[row.machine]})"
        while name in instances:  # a key may be used again after its holder's end
            name += "'"
        instances[name] = dict(_ending(row))
    return World(dict(leaves(returned, "")), instances, h.effects)


def _ending(row: Instance) -> Iterator[tuple[str, Any]]:
    yield "status", str(row.status)
    if not row.status.is_terminal:
        yield "step", row.step
    if row.error is not None and row.status.is_terminal:
        yield "error", f"{row.error.type}: {row.error.message}"
    yield from leaves(row.result, "result")


def leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Every place in a value that has no places in it."""
    match value:
        case dict() if value:
            for name, item in value.items():
                yield from leaves(item, f"{place}.{name}" if place else str(name))
        case list() | tuple() if value:
            for index, item in enumerate(value):
                yield from leaves(item, f"{place}[{index}]")
        case Handle():
            yield place, "a handle"
        case Instance():
            yield from ((f"{place}.{name}" if place else name, item) for name, item in _ending(value))
        case _:
            yield place, value
