"""Declares machines: classes with steps, a nested State and a `handle`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, TypeVar, Unpack, overload

from stepwell.config import check_name
from stepwell.context import Context
from stepwell.errors import DefinitionError
from stepwell.limits import LimitRef, StepLimits, step_limits
from stepwell.outcomes import Entry, Outcome, StartOptions, StepRef, Stop

StepFunction = TypeVar("StepFunction", bound=Callable[..., Any])

TRANSACTIONAL_TIMEOUT = timedelta(seconds=60)
"""The default timeout of a transactional step, which holds locks."""
MAX_TIMEOUT = timedelta(days=365)
_MARK = "__stepwell_step__"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a machine: its name, its function, how long it may run."""

    name: str
    function: Callable[..., Any]
    is_async: bool
    timeout: timedelta | None
    transactional: bool = False
    limits: StepLimits | None = None  # None: it has none


@overload
def step(function: StepFunction, /) -> StepFunction: ...
@overload
def step(
    *,
    timeout: timedelta | None = None,
    transactional: bool = False,
    concurrency_limit: LimitRef | None = None,
    rate_limit: LimitRef | None = None,
    weight: int | None = None,
) -> Callable[[StepFunction], StepFunction]: ...
def step(
    function: StepFunction | None = None,
    /,
    *,
    timeout: timedelta | None = None,
    transactional: bool = False,
    concurrency_limit: LimitRef | None = None,
    rate_limit: LimitRef | None = None,
    weight: int | None = None,
) -> StepFunction | Callable[[StepFunction], StepFunction]:
    """Mark a method as a step. It stays a plain method: `self.ship` names it, `machine.ship(ctx)` calls it.

    What a transactional step writes through `ctx.connection` is committed with its outcome, or not at all.
    Limits are those of the engine, by name: every instance needs them before it runs this step.
    """
    check_timeout(timeout)

    def mark(marked: StepFunction) -> StepFunction:
        if not inspect.isfunction(marked):
            raise DefinitionError(f"@step goes on a method, not on {marked!r}")
        if inspect.isasyncgenfunction(marked) or inspect.isgeneratorfunction(marked):
            raise DefinitionError(f"step {marked.__name__!r} is a generator; return an outcome instead of yielding")
        is_async = inspect.iscoroutinefunction(marked)
        check_transactional(f"step {marked.__name__!r}", transactional, is_async=is_async)
        limits = step_limits(concurrency_limit, rate_limit, weight)
        found = Step(marked.__name__, marked, is_async, timeout, transactional, limits)
        setattr(marked, _MARK, found)
        return marked

    return mark if function is None else mark(function)


def check_timeout(timeout: object) -> None:
    """Refuse a step's timeout that is not a timedelta, or out of range."""
    if timeout is None:
        return
    if not isinstance(timeout, timedelta):
        raise DefinitionError(f"timeout: expected a timedelta, got {timeout!r}")
    if not timedelta(0) < timeout <= MAX_TIMEOUT:
        raise DefinitionError(f"timeout: {timeout} is out of range (more than 0, at most {MAX_TIMEOUT.days} days)")


def check_transactional(where: str, transactional: object, *, is_async: bool) -> None:
    """Refuse a transactional step that cannot use its connection."""
    if not isinstance(transactional, bool):
        raise DefinitionError(f"{where}: transactional must be True or False, not {transactional!r}")
    if transactional and not is_async:
        raise DefinitionError(f"{where} is transactional and must be `async def`: its connection belongs to the loop, "
                              "and a thread cannot use it")


def step_name(ref: StepRef) -> str | None:
    """The step's name in a step reference; None if it is not a step reference."""
    if isinstance(ref, str):
        return ref
    mark = getattr(ref, _MARK, None)
    return mark.name if isinstance(mark, Step) else None


class Compiled(Protocol):
    """Something that compiles to a machine, such as a pipeline: usable wherever its machine is."""

    @property
    def machine(self) -> type[Machine]: ...


class Machine:
    """A durable state machine. Subclass it, give it steps, and register it: `Engine(machines=[Checkout])`."""

    name: ClassVar[str]
    version: ClassVar[int]
    queue: ClassVar[str]
    initial: ClassVar[str]
    state_type: ClassVar[type | None]
    retention: ClassVar[timedelta | Literal[False] | None]
    steps: ClassVar[dict[str, Step]]
    _state_from: ClassVar[Callable[[Any], Any] | None] = None  # of a compiled machine: input → state
    _shape: ClassVar[str | None] = None  # of a compiled one: a hash of its steps; another shape is another version
    _authored: ClassVar[Mapping[str, str]] = MappingProxyType({})  # of a compiled one: the author's names, by step
    _refuse_restart: ClassVar[Callable[[int | None, str, str], str | None] | None] = None  # why not at that step

    def __init_subclass__(
        cls,
        *,
        name: str | None = None,
        version: int = 1,
        queue: str = "default",
        initial: str | None = None,
        state: type | None = None,
        retention: timedelta | Literal[False] | None = None,
        **unknown: object,
    ) -> None:
        if unknown:
            raise DefinitionError(f"machine {cls.__name__}: unknown option {', '.join(map(repr, unknown))}; "
                                  "known are name, version, queue, initial, state and retention")
        super().__init_subclass__()
        cls.name = name if name is not None else cls.__name__
        cls.version = version
        cls.queue = queue
        cls.state_type = state if state is not None else getattr(cls, "State", None)
        cls.retention = retention
        cls.steps = _collect_steps(cls)
        cls.initial = initial if initial is not None else "start"
        _check_machine(cls)

    async def handle(self, error: Exception, ctx: Context[Any]) -> Outcome:
        """Return the outcome after an error of a step. Override it; by default the instance fails."""
        return Stop(error)

    @classmethod
    def child(cls, state: Any = None, **options: Unpack[StartOptions]) -> Entry[Any]:
        """One start of this machine, for `engine.start_many([...])` and `Spawn`; options as for `engine.start`."""
        return Entry(cls, state, options)


def check_retention(where: str, retention: object) -> None:
    """Refuse a retention that is neither a timedelta, nor False (for ever), nor None (the engine's)."""
    if retention is None or retention is False:
        return
    if not isinstance(retention, timedelta) or retention < timedelta(0):
        raise DefinitionError(f"{where}: retention must be a timedelta from 0 on, or False to keep for ever, "
                              f"not {retention!r}")


def _collect_steps(cls: type[Machine]) -> dict[str, Step]:
    steps: dict[str, Step] = {}
    for attribute in dir(cls):
        mark = getattr(inspect.getattr_static(cls, attribute), _MARK, None)
        if isinstance(mark, Step):
            if mark.name != attribute:
                raise DefinitionError(f"machine {cls.__name__}: {attribute!r} is another name for step {mark.name!r}; "
                                      "define it with its own name")
            steps[attribute] = mark
    return steps


def _check_machine(cls: type[Machine]) -> None:
    where = f"machine {cls.__name__}"
    for what, value in (("name", cls.name), ("queue", cls.queue), ("initial", cls.initial)):
        if not isinstance(value, str):
            raise DefinitionError(f"{where}: {what} must be a string, not {value!r}")
        if problem := check_name(value, what):
            raise DefinitionError(f"{where}: {problem}")
    if "@" in cls.name:
        raise DefinitionError(f"{where}: the name {cls.name!r} has an '@', which stands between name and version")
    if not isinstance(cls.version, int) or isinstance(cls.version, bool) or not 1 <= cls.version < 2**31:
        raise DefinitionError(f"{where}: version must be a whole number from 1, not {cls.version!r}")
    check_retention(where, cls.retention)
    if not cls.steps:
        raise DefinitionError(f"{where} has no steps; mark its methods with @step")
    if cls.initial not in cls.steps:
        raise DefinitionError(f"{where} has no initial step {cls.initial!r}; "
                              f"name one of {', '.join(cls.steps)} with initial=")
