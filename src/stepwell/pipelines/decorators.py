"""Pipelines in Python: decorators that make steps of functions, and `await_` for await steps."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Protocol, TypeAlias, TypedDict, Unpack, get_args, get_origin, get_type_hints, overload

from stepwell._core.serialization.type_ref import refer_function, shown
from stepwell.config import check_name
from stepwell.errors import DefinitionError
from stepwell.outcomes import MAX_ITEMS, OnTimeout
from stepwell.pipelines.model import RETRIES, AwaitStep, Cardinality, OnError, PipelineStep, exponential

Function: TypeAlias = Callable[..., Any]
_PROJECTED = 3  # the request, what the actor sent, and what is known about it
_STREAMS = (AsyncIterator, AsyncIterable, Iterator, Iterable, list)


def await_(
    name: str,
    *,
    over: str,
    output: Any,
    input: Any = Any,  # noqa: A002 - the name of the step's key
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
    projector: Function | None = None,
) -> AwaitStep:
    """An await step: ask over a transport, once or once per item, and continue with the replies.

    With `completion` and `projector` the external system sends only the facts it owns, of that type; the output is
    `projector(request, facts, answered)`, made when the completion is admitted.
    """
    if (completion is None) != (projector is None):
        raise DefinitionError(f"await step {name!r}: completion and projector go together; give both, or none")
    if projector is not None and (problem := check_projector(projector)):
        raise DefinitionError(f"await step {name!r}: projector: {problem}")
    return AwaitStep(
        name=name, over=over, output=output, input=input, cardinality=Cardinality(cardinality), timeout=timeout,
        on_timeout=on_timeout, idempotency=tuple(idempotency), shared=shared, token=token, window=window,
        assignee=assignee, group=group, max_items=max_items, completion=completion, projector=projector,
    )  # fmt: skip


def check_projector(projector: Function) -> str | None:
    """What is wrong with a projector: it has to be a plain function of three arguments that another process can
    find.
    """
    if inspect.iscoroutinefunction(projector):
        return "a projector is a plain function, not `async def`: it only combines its arguments"
    try:
        inspect.signature(projector).bind(*range(_PROJECTED))
    except (TypeError, ValueError):  # of a builtin that does not say what it takes
        return "a projector takes three arguments: the request, what the actor sent, and what is known about it"
    try:
        refer_function(projector)
    except LookupError as error:
        return f"{error} cannot be found by another process; define it at the top of a module"
    return None


def declare(
    cardinality: Cardinality,
    function: Function | None = None,
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
        return f"{cardinality} takes the whole stream; remove it"
    if wrong := [kind for kind in accepts if not isinstance(kind, type) or get_origin(kind) is not None]:
        return f"{shown(wrong[0])} is not a class"
    return None


class StepOptions(TypedDict, total=False):
    """The options of the decorators."""

    name: str | None
    retries: int
    backoff: Callable[[int], timedelta]
    on_error: OnError
    accepts: type | tuple[type, ...]


class Decorator(Protocol):
    """Makes a step of a function, with or without options."""

    @overload
    def __call__(self, function: Function, /, **options: Unpack[StepOptions]) -> PipelineStep: ...
    @overload
    def __call__(self, **options: Unpack[StepOptions]) -> Callable[[Function], PipelineStep]: ...


one_to_one: Decorator = partial(declare, Cardinality.ONE_TO_ONE)
one_to_many: Decorator = partial(declare, Cardinality.ONE_TO_MANY)
many_to_one: Decorator = partial(declare, Cardinality.MANY_TO_ONE)
many_to_many: Decorator = partial(declare, Cardinality.MANY_TO_MANY)


def _is_async(function: Function) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _types(function: Function, where: str) -> tuple[Any, Any]:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:  # of a builtin
        raise DefinitionError(f"{where}: {error}; write a function around it, with one parameter") from error
    if len(parameters) != 1:
        raise DefinitionError(f"{where}: takes one parameter, the item or the stream, not {len(parameters)}")
    try:
        hints = get_type_hints(function)
    except NameError as error:
        raise DefinitionError(f"{where}: {error}; its types must be defined in its module") from error
    return hints.get(parameters[0].name, Any), hints.get("return", Any)


def _item(hint: Any, is_many: bool) -> Any:
    """The type of one item of a stream."""
    if not is_many:
        return hint
    return get_args(hint)[0] if get_origin(hint) in _STREAMS and get_args(hint) else Any
