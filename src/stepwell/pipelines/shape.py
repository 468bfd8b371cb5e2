"""The shape of a pipeline: what a run behind an await step relies on to continue there."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from stepwell._core.serialization.type_ref import shown
from stepwell.pipelines.model import AwaitStep, Part, type_behind
from stepwell.pipelines.segments import Segment


def shape_of(parts: Sequence[Part], segments: Sequence[Segment], *, takes_many: bool) -> str | None:
    """A digest of the order of steps and await steps, and of the types that are stored between them.

    None: nothing is asked, so that a run is only ever at its first step.
    """
    if segments[0].exit is None:
        return None
    parts_read = [takes_many, _kind(parts[0].input), *(part for segment in segments for part in _parts_of(segment))]
    return hashlib.sha256(msgspec.json.encode(parts_read)).hexdigest()[:8]


def _parts_of(segment: Segment) -> Iterator[list[Any]]:
    for step in segment.steps:
        yield [step.name, step.cardinality]
    if segment.exit is None:
        return
    yield _asked(segment.exit)
    for step in segment.item_steps:
        yield [step.name, step.cardinality]
    if segment.asks_each:  # the output of each item is stored
        yield [_kind(type_behind(segment.exit.output, segment.item_steps))]


def _asked(await_step: AwaitStep) -> list[Any]:
    return [await_step.name, await_step.cardinality, _kind(await_step.input), _kind(await_step.output)]


def _kind(kind: Any) -> Any:
    """A type by its modules and names: another class may have the same name."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return [_kind(parts[0]), *map(str, parts[1:])]
    if origin is not None and origin is not Literal:
        how = "union" if origin in (Union, UnionType) else _kind(origin)
        return [how, *map(_kind, parts)]
    return f"{_module(kind)}:{kind.__qualname__}" if isinstance(kind, type) else shown(kind)


def _module(kind: type) -> str:
    """The module of a class, even if that is the script that runs: other processes import it."""
    if kind.__module__ != "__main__":
        return kind.__module__
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return spec.name if spec is not None else "__main__" if file is None else Path(file).stem
