"""How a pipeline is written in Python: steps by their cardinality, and boundaries at which it asks the world."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from enum import StrEnum
from functools import partial
from types import UnionType
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec

from stepwell._core.references import refer_function, shown
from stepwell._core.replies import Projected
from stepwell.config import check_name
from stepwell.errors import DefinitionError
from stepwell.outcomes import OnTimeout

OnError: TypeAlias = Literal["fail", "reject"]
RETRIES = 3
_PROJECTED = 3  # the request, what the actor sent, and what is known about it
MAX_ITEMS = 10_000
_STREAMS = (AsyncIterator, AsyncIterable, Iterator, Iterable, list)


class Cardinality(StrEnum):
    """How many go in, how many come out."""

    ONE_TO_ONE = "ONE_TO_ONE"
    ONE_TO_MANY = "ONE_TO_MANY"
    MANY_TO_ONE = "MANY_TO_ONE"
    MANY_TO_MANY = "MANY_TO_MANY"

    @classmethod
    def _missing_(cls, value: object) -> Cardinality | None:
        """Other names that pipelines elsewhere have for them."""
        return {"EXPANSION": cls.ONE_TO_MANY, "REDUCTION": cls.MANY_TO_ONE}.get(str(value))

    @property
    def is_aggregate(self) -> bool:
        """It takes the whole stream, so that items go no further alone."""
        return self in (Cardinality.MANY_TO_ONE, Cardinality.MANY_TO_MANY)

    @property
    def gives_many(self) -> bool:
        return self in (Cardinality.ONE_TO_MANY, Cardinality.MANY_TO_MANY)


def exponential(attempt: int) -> timedelta:
    """0.5 s, 1 s, 2 s… up to 30 s: the pause before the next try, after so many (from 1)."""
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
    accepts: tuple[type, ...] = ()  # items of other types pass it by; none: it takes all


class Boundary(msgspec.Struct, frozen=True, kw_only=True):
    """Where the pipeline asks the world, and goes on by its answers."""

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
    completion: Any = None  # what the other side sends, if a projector makes the output of it
    projector: Callable[..., Any] | None = None

    @property
    def reply(self) -> Any:
        """What its questions ask for."""
        output = list[self.output] if self.cardinality.gives_many else self.output  # type: ignore[name-defined]  # a value
        if self.projector is None:
            return output
        request = list[self.input] if self.cardinality.is_aggregate else self.input  # type: ignore[name-defined]  # a value
        return Projected(request, self.completion, self.projector, output)


Part: TypeAlias = PipelineStep | Boundary


def await_(
    name: str,
    *,
    over: str,
    output: Any,
    input: Any = Any,  # noqa: A002 - as the step's own key is called
    cardinality: Cardinality | str = Cardinality.ONE_TO_ONE,
    timeout: timedelta | None = None,
    on_timeout: OnTimeout = "fail",
    idempotency: Sequence[str] = (),
    shared: bool = False,
    token: bool = False,
    window: int = 200,
    assignee: str | None = None,
    group: str | None = None,
    max_items: int = MAX_ITEMS,
    completion: Any = None,
    projector: Callable[..., Any] | None = None,
) -> Boundary:
    """A boundary: ask over a transport, once or once per item, and go on by the answers.

    With `completion` and `projector` the other side sends only the facts it owns, of that type; the output is
    `projector(request, facts, answered)`, made when the answer is admitted.
    """
    if (completion is None) != (projector is None):
        raise DefinitionError(f"boundary {name!r}: completion and projector go together; give both, or none")
    if projector is not None and (problem := check_projector(projector)):
        raise DefinitionError(f"boundary {name!r}: projector: {problem}")
    return Boundary(
        name=name, over=over, output=output, input=input, cardinality=Cardinality(cardinality), timeout=timeout,
        on_timeout=on_timeout, idempotency=tuple(idempotency), shared=shared, token=token, window=window,
        assignee=assignee, group=group, max_items=max_items, completion=completion, projector=projector,
    )  # fmt: skip


def check_projector(projector: Callable[..., Any]) -> str | None:
    """What is wrong with a projector: it is a plain function of three arguments that another process finds again."""
    if inspect.iscoroutinefunction(projector):
        return "a projector is a plain function, not `async def`: it only puts together what is there"
    try:
        inspect.signature(projector).bind(*range(_PROJECTED))
    except TypeError:
        return "a projector takes three arguments: the request, what the actor sent, and what is known about it"
    try:
        refer_function(projector)
    except LookupError as error:
        return f"{error} can not be found again by another process; define it at the top of a module"
    return None


def declare(
    cardinality: Cardinality,
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retries: int = RETRIES,
    backoff: Callable[[int], timedelta] = exponential,
    on_error: OnError = "fail",
    accepts: type | tuple[type, ...] = (),
) -> Any:
    """Make a step of a function; types come from its annotations."""
    if function is None:
        return partial(
            declare, cardinality, name=name, retries=retries, backoff=backoff, on_error=on_error, accepts=accepts
        )
    called = name if name is not None else function.__name__
    where = f"pipeline step {called!r}"
    if problem := check_name(called, "name"):
        raise DefinitionError(f"{where}: {problem}")
    if cardinality.is_aggregate and not _is_async(function):
        raise DefinitionError(f"{where}: a step over the whole stream is `async def`, and takes an async iterator")
    if cardinality.gives_many and inspect.iscoroutinefunction(function):
        raise DefinitionError(f"{where}: it gives many, so it yields them; write `yield` instead of `return`")
    if on_error not in ("fail", "reject") or (on_error == "reject" and cardinality.is_aggregate):
        raise DefinitionError(f"{where}: on_error is 'fail' or, over single items, 'reject', not {on_error!r}")
    accepted = accepts if isinstance(accepts, tuple) else (accepts,)
    if problem := check_accepts(accepted, cardinality):
        raise DefinitionError(f"{where}: accepts: {problem}")
    taken, given = _types(function, where)
    return PipelineStep(
        name=called, function=function, cardinality=cardinality, input=_item(taken, cardinality.is_aggregate),
        output=_item(given, cardinality.gives_many), retries=retries, backoff=backoff, on_error=on_error,
        accepts=accepted,
    )  # fmt: skip


def check_accepts(accepts: Sequence[Any], cardinality: Cardinality) -> str | None:
    """What is wrong with the types of items that a step takes."""
    if accepts and cardinality.is_aggregate:
        return f"{cardinality} takes the whole stream; leave it away"
    if wrong := [kind for kind in accepts if not isinstance(kind, type) or get_origin(kind) is not None]:
        return f"{shown(wrong[0])} is no class"
    return None


def type_behind(kind: Any, steps: Sequence[PipelineStep]) -> Any:
    """The type of items of a type behind these steps; a union if some pass by."""
    kinds = list(_variants(kind))
    for step in steps:
        passing = [one for one in kinds if step.accepts and not _is_accepted(one, step.accepts)]
        kinds = [*dict.fromkeys([*passing, *(_variants(step.output) if len(passing) < len(kinds) else ())])]
    return Any if Any in kinds else Union[tuple(kinds)]  # noqa: UP007 - of as many as there are


def _variants(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _is_accepted(kind: Any, accepts: tuple[type, ...]) -> bool:
    return isinstance(kind, type) and issubclass(kind, accepts)


one_to_one = partial(declare, Cardinality.ONE_TO_ONE)
one_to_many = partial(declare, Cardinality.ONE_TO_MANY)
many_to_one = partial(declare, Cardinality.MANY_TO_ONE)
many_to_many = partial(declare, Cardinality.MANY_TO_MANY)


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _types(function: Callable[..., Any], where: str) -> tuple[Any, Any]:
    parameters = list(inspect.signature(function).parameters.values())
    if len(parameters) != 1:
        raise DefinitionError(f"{where}: takes one parameter, the item or the stream, not {len(parameters)}")
    try:
        hints = get_type_hints(function)
    except NameError as error:
        raise DefinitionError(f"{where}: {error}; its types must be defined where it is") from error
    return hints.get(parameters[0].name, Any), hints.get("return", Any)


def _item(hint: Any, is_many: bool) -> Any:
    """The type of one item of a stream."""
    if not is_many:
        return hint
    return get_args(hint)[0] if get_origin(hint) in _STREAMS and get_args(hint) else Any
