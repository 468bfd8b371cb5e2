"""The parts of a pipeline: steps by their cardinality, and await steps at which it asks an external system."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import StrEnum
from types import UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin

import msgspec

from stepwell._core.serialization.reply_type import Projected
from stepwell.outcomes import MAX_ITEMS, OnTimeout

OnError: TypeAlias = Literal["fail", "reject"]
RETRIES = 3


class Cardinality(StrEnum):
    """How many items go in, and how many come out."""

    ONE_TO_ONE = "ONE_TO_ONE"
    ONE_TO_MANY = "ONE_TO_MANY"
    MANY_TO_ONE = "MANY_TO_ONE"
    MANY_TO_MANY = "MANY_TO_MANY"

    @classmethod
    def _missing_(cls, value: object) -> Cardinality | None:
        """Accept the names that other pipeline frameworks use."""
        return {"EXPANSION": cls.ONE_TO_MANY, "REDUCTION": cls.MANY_TO_ONE}.get(str(value))

    @property
    def is_aggregate(self) -> bool:
        """It takes the whole stream, so items do not continue alone after it."""
        return self in (Cardinality.MANY_TO_ONE, Cardinality.MANY_TO_MANY)

    @property
    def gives_many(self) -> bool:
        return self in (Cardinality.ONE_TO_MANY, Cardinality.MANY_TO_MANY)


def exponential(attempt: int) -> timedelta:
    """0.5 s, 1 s, 2 s… up to 30 s: the pause before the next try, after the given number of tries (from 1)."""
    return min(timedelta(seconds=0.5) * (1 << min(attempt - 1, 10)), timedelta(seconds=30))


class PipelineStep(msgspec.Struct, frozen=True, kw_only=True):
    """One ordinary step: a function over one item, or over the whole stream."""

    name: str
    function: Callable[..., Any]
    cardinality: Cardinality
    input: Any = Any  # of one item
    output: Any = Any
    retries: int = RETRIES
    backoff: Callable[[int], timedelta] = exponential
    on_error: OnError = "fail"
    accepts: tuple[type, ...] = ()  # items of other types skip it; empty: it takes all


class AwaitStep(msgspec.Struct, frozen=True, kw_only=True):
    """An await step: the pipeline asks an external system, and continues with the replies."""

    name: str
    over: str  # the transport
    output: Any
    input: Any = Any
    cardinality: Cardinality = Cardinality.ONE_TO_ONE
    timeout: timedelta | None = None
    on_timeout: OnTimeout = "fail"
    idempotency: tuple[str, ...] = ()
    shared: bool = False
    token: bool = False
    window: int = 200
    assignee: str | None = None
    group: str | None = None
    max_items: int = MAX_ITEMS
    completion: Any = None  # the type that the external system sends, if a projector makes the output of it
    projector: Callable[..., Any] | None = None

    @property
    def request(self) -> Any:
        """The type of one request."""
        return list[self.input] if self.cardinality.is_aggregate else self.input  # type: ignore[name-defined]  # a value

    @property
    def reply(self) -> Any:
        """The type of one reply."""
        output = list[self.output] if self.cardinality.gives_many else self.output  # type: ignore[name-defined]  # a value
        if self.projector is None:
            return output
        return Projected(self.request, self.completion, self.projector, output)


Part: TypeAlias = PipelineStep | AwaitStep


def type_behind(kind: Any, steps: Sequence[PipelineStep]) -> Any:
    """The type of items of a type behind these steps; a union if some skip them."""
    kinds = list(_variants(kind))
    for step in steps:
        passing = [one for one in kinds if step.accepts and not _is_accepted(one, step.accepts)]
        kinds = [*dict.fromkeys([*passing, *(_variants(step.output) if len(passing) < len(kinds) else ())])]
    return Any if Any in kinds else Union[tuple(kinds)]  # noqa: UP007 - of as many as there are


def _variants(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _is_accepted(kind: Any, accepts: tuple[type, ...]) -> bool:
    return isinstance(kind, type) and issubclass(kind, accepts)
