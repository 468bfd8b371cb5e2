"""The state after a scenario: what it returned, how every instance ended, what was recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepwell._client.client import Handle
from stepwell._core.instance import Instance
from stepwell.testing.effects import Effect

if TYPE_CHECKING:
    from stepwell.testing.harness import Harness

Leaves = dict[str, Any]
"""A value by its places."""


@dataclass(frozen=True, slots=True)
class EndState:
    """The end of one run. `returned` and `instances` are split into leaves, so that single places can be compared."""

    returned: Leaves
    instances: dict[str, Leaves]
    effects: list[Effect]


async def end_state_of(h: Harness, returned: Any) -> EndState:
    """The state of a harness; instances by machine and key, or by the order of their start; items by their number."""
    rows = sorted([row async for row in h.engine.insights.each()], key=lambda row: row.id)
    numbers: Counter[str] = Counter()
    instances = {}
    names: dict[int | None, str] = {}
    for row in rows:
        if row.item is not None and row.parent_id in names:
            name = f"{names[row.parent_id]} item {row.item}"
        elif row.key is not None:
            name = f"{row.machine} {row.key!r}"
        else:
            numbers[row.machine] += 1
            name = f"{row.machine} ({numbers[row.machine]})"
        while name in instances:  # a key may be used again after the end of its instance
            name += "'"
        names[row.id] = name
        instances[name] = dict(_ending(row))
    return EndState(dict(leaves(returned, "")), instances, h.effects)


def _ending(row: Instance) -> Iterator[tuple[str, Any]]:
    yield "status", str(row.status)
    if not row.status.is_terminal:
        yield "step", row.step
    if row.error is not None and row.status.is_terminal:
        yield "error", f"{row.error.type}: {row.error.message}"
    yield from leaves(row.result, "result")


def leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Every leaf of a value, with its place."""
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
