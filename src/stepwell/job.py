"""Declares jobs: typed functions with retries."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, Protocol, TypeVar, Unpack, overload

from stepwell.config import check_name
from stepwell.context import Context
from stepwell.errors import DefinitionError
from stepwell.limits import LimitRef, step_limits
from stepwell.machine import check_retention, check_timeout, check_transactional
from stepwell.outcomes import Entry, Result_co, StartOptions

P = ParamSpec("P")
R = TypeVar("R")

Backoff = Callable[[int], timedelta]
STEP = "run"
"""The one step of a job."""


def exponential(attempt: int) -> timedelta:
    """The default backoff: min(1 s · 2^attempt, 5 min)."""
    return min(timedelta(seconds=2 ** min(attempt, 9)), timedelta(minutes=5))


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments of one call, checked when the job is started."""

    job: Job[Any, Any]
    values: dict[str, Any]


class Job(Generic[P, Result_co]):
    """A function that runs durably: at least once, with retries, until it returns.

    `Job[P, R]`: P are its parameters, R is its result; for an async function, the awaited value.
    """

    def __init__(
        self,
        function: Callable[P, Any],
        *,
        name: str | None = None,
        version: int = 1,
        queue: str = "default",
        max_attempts: int = 20,
        backoff: Backoff = exponential,
        timeout: timedelta | None = None,
        transactional: bool = False,
        retention: timedelta | Literal[False] | None = None,
        concurrency_limit: LimitRef | None = None,
        rate_limit: LimitRef | None = None,
        weight: int | None = None,
    ) -> None:
        self.function = function
        self.name = name if name is not None else function.__name__
        self.version = version
        self.queue = queue
        self.max_attempts = max_attempts
        self.backoff = backoff
        self.timeout = timeout
        self.transactional = transactional
        self.retention: timedelta | Literal[False] | None = retention
        self.limits = step_limits(concurrency_limit, rate_limit, weight)
        self.is_async = inspect.iscoroutinefunction(function)
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        _check_job(self)
        self.parameters, self.context_parameter, self.returns = _read_signature(self)
        if transactional and self.context_parameter is None:
            raise DefinitionError(f"job {self.name} is transactional and cannot reach its connection; "
                                  "give it a parameter annotated Context")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function directly, not durably."""
        return self.function(*args, **kwargs)

    def args(self, *args: P.args, **kwargs: P.kwargs) -> Arguments:
        """Arguments for `engine.start(send_mail, send_mail.args(to=…))`, checked by type checkers."""
        bound = inspect.signature(self.function).bind_partial(*args, **kwargs)
        return Arguments(self, {k: v for k, v in bound.arguments.items() if k != self.context_parameter})

    def child(self, state: Any = None, **options: Unpack[StartOptions]) -> Entry[Result_co]:
        """One start of this job, for `engine.start_many([...])` and `Spawn`; options as for `engine.start`."""
        return Entry(self, state, options)

    def __repr__(self) -> str:
        return f"<job {self.name} version {self.version}>"


if TYPE_CHECKING:
    # The types of `@job` for type checkers, with what a call returns. At run time both are a Job.

    class AsyncJob(Job[P, Result_co]):
        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Result_co]: ...

    class SyncJob(Job[P, Result_co]):
        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Result_co: ...


class MakeJob(Protocol):
    """The decorator that `@job(queue=…)` returns."""

    @overload
    def __call__(  # type: ignore[overload-overlap]  # as for `job`
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncJob[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> SyncJob[P, R]: ...


@overload
def job(  # type: ignore[overload-overlap]  # a coroutine could be a plain result too, but cannot be stored
    function: Callable[P, Coroutine[Any, Any, R]], /
) -> AsyncJob[P, R]: ...
@overload
def job(function: Callable[P, R], /) -> SyncJob[P, R]: ...
@overload
def job(
    *,
    name: str | None = None,
    version: int = 1,
    queue: str = "default",
    max_attempts: int = 20,
    backoff: Backoff = exponential,
    timeout: timedelta | None = None,
    transactional: bool = False,
    retention: timedelta | Literal[False] | None = None,
    concurrency_limit: LimitRef | None = None,
    rate_limit: LimitRef | None = None,
    weight: int | None = None,
) -> MakeJob: ...
def job(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a job: `@job` or `@job(queue="mail", max_attempts=5)`."""

    def make(made: Callable[..., Any]) -> Job[..., Any]:
        return Job(made, **options)

    return make if function is None else make(function)


def _check_job(checked: Job[Any, Any]) -> None:
    where = f"job {checked.name}"
    if inspect.isasyncgenfunction(checked.function) or inspect.isgeneratorfunction(checked.function):
        raise DefinitionError(f"{where} is a generator; return its result instead of yielding")
    for what, value in (("name", checked.name), ("queue", checked.queue)):
        if not isinstance(value, str):
            raise DefinitionError(f"{where}: {what} must be a string, not {value!r}")
        if problem := check_name(value, what):
            raise DefinitionError(f"{where}: {problem}; give it one with name=")
    if "@" in checked.name:
        raise DefinitionError(f"{where}: the name has an '@', which stands between name and version")
    for what, number in (("version", checked.version), ("max_attempts", checked.max_attempts)):
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number < 2**31:
            raise DefinitionError(f"{where}: {what} must be a whole number from 1, not {number!r}")
    if not callable(checked.backoff):
        raise DefinitionError(f"{where}: backoff must be a function of the attempt that returns a timedelta")
    check_timeout(checked.timeout)
    check_transactional(where, checked.transactional, is_async=checked.is_async)
    check_retention(where, checked.retention)


def _read_signature(read: Job[Any, Any]) -> tuple[dict[str, tuple[Any, Any]], str | None, Any]:
    """The typed arguments, the parameter annotated `Context` if there is one, and the return annotation."""
    try:
        hints = typing.get_type_hints(read.function, include_extras=True)
    except NameError as error:
        raise DefinitionError(f"job {read.name}: an annotation cannot be resolved: {error}; "
                              "its types must be importable where the function is defined") from error
    arguments: dict[str, tuple[Any, Any]] = {}
    context: str | None = None
    for parameter in inspect.signature(read.function).parameters.values():
        hint = hints.get(parameter.name, Any)
        if (typing.get_origin(hint) or hint) is Context:
            context = parameter.name
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise DefinitionError(f"job {read.name}: parameter {parameter.name!r} is variadic or positional-only; "
                                  "arguments are stored by name")
        else:
            arguments[parameter.name] = (hint, parameter.default)
    return arguments, context, hints.get("return", Any)
