"""The machines and jobs that this process registers, by name and version, in one form for both."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Literal, Protocol

import msgspec

from stepwell._core.limits.requirement import Declared, LimitRequirement
from stepwell._core.serialization.result_type import UNTYPED, ResultType, result_type
from stepwell._core.serialization.state_type import NO_DEFAULT, StateType, arguments_type
from stepwell.context import Context
from stepwell.errors import Cancel, DefinitionError, InvalidInput, UnknownMachine, UnknownStep, UnknownTransport
from stepwell.job import STEP, Job
from stepwell.limits import Limit
from stepwell.machine import Machine, Step
from stepwell.outcomes import Done, Outcome, Retry, Stop

Upcast = Callable[[Any, str, int], tuple[Any, str]]


@dataclass(frozen=True, slots=True)
class Owner:
    """The object with the functions of the steps, and its functions beside them."""

    object: Any  # `self` of a machine's steps, or the job
    handle: Callable[[Any, Context[Any]], Any]
    handle_is_async: bool = False
    upcast: Upcast | None = None


@dataclass(frozen=True, slots=True)
class PipelineSteps:
    """What is known of the steps of a pipeline, which the library writes."""

    shape: str | None  # a hash of the steps, which change together; None: one step, which asks nothing
    authored: Mapping[str, str]  # the author's names, by step


@dataclass(frozen=True, slots=True)
class Definition:
    """One version of one machine or job, ready to run."""

    name: str
    version: int
    queue: str
    initial: str
    steps: Mapping[str, Step]
    state: StateType
    owner: Owner
    is_job: bool = False
    retention: timedelta | Literal[False] | None = None  # None: the engine's
    result: ResultType = UNTYPED
    needs: Mapping[str, LimitRequirement] = field(default_factory=dict)  # of the steps that declare limits
    pipeline: PipelineSteps | None = None

    @property
    def label(self) -> str:
        """Its name in the database: name@version."""
        return f"{self.name}@{self.version}"

    def step(self, name: str) -> Step:
        """The step of that name, or UnknownStep with the near miss."""
        try:
            return self.steps[name]
        except KeyError:
            raise UnknownStep(self.name, name, list(self.steps)) from None

    def named(self, name: str) -> Step:
        """The same, by its readable name: the shape of a pipeline may be left out."""
        if self.pipeline is not None and (whole := f"{name}.{self.pipeline.shape}") in self.steps:
            return self.step(whole)
        return self.step(name)


class Sending(Protocol):
    """What the registry needs of a transport: whether it sends anything."""

    @property
    def sends(self) -> bool: ...


class Registry:
    """Definitions by name and version."""

    def __init__(
        self,
        machines: Iterable[Any] = (),
        limits: Iterable[Limit] = (),
        transports: Mapping[str, Sending] | None = None,
        *,
        has_token_keys: bool = False,
    ) -> None:
        self.limits = Declared(limits)
        self.has_token_keys = has_token_keys
        self._transports = transports or {}
        self._versions: dict[str, dict[int, Definition]] = {}
        self._by_object: dict[int, tuple[object, Definition]] = {}  # by id; the tuple keeps the object alive
        if isinstance(machines, Job | type):
            raise DefinitionError(f"machines: expected a list, got {machines!r}; write machines=[…]")
        for machine in machines:
            definition = self._with_needs(define(machine))
            self._add(definition)
            self._by_object[id(machine)] = machine, definition

    def _with_needs(self, definition: Definition) -> Definition:
        """The definition with the limits of its steps, as this engine declares them."""
        needs = {}
        for name, step in definition.steps.items():
            if step.limits is None:
                continue
            try:
                needs[name] = self.limits.of_step(step.limits)
            except InvalidInput as error:
                raise DefinitionError(f"{definition.name}.{name}: {error}") from error
        return replace(definition, needs=MappingProxyType(needs)) if needs else definition

    def _add(self, definition: Definition) -> None:
        versions = self._versions.setdefault(definition.name, {})
        if definition.version in versions:
            raise DefinitionError(f"two machines are called {definition.name!r} version {definition.version}; "
                                  "give one of them another name= or version=")
        versions[definition.version] = definition

    def all(self) -> list[Definition]:
        """Every definition, by name and version."""
        return [versions[v] for _, versions in sorted(self._versions.items()) for v in sorted(versions)]

    def labels(self) -> list[str]:
        """Every name@version."""
        return [definition.label for definition in self.all()]

    def authored(self) -> str:
        """The authors' names of pipeline steps, as JSON, by name@version and step."""
        names = {one.label: one.pipeline.authored for one in self.all() if one.pipeline and one.pipeline.authored}
        return msgspec.json.encode(names).decode()

    @property
    def is_transactional(self) -> bool:
        """Whether any step commits with its author's writes."""
        return any(step.transactional for definition in self.all() for step in definition.steps.values())

    def transport(self, name: object) -> Sending:
        """The transport of that name, or UnknownTransport with the near miss."""
        try:
            return self._transports[name]  # type: ignore[index]  # a name of any type is refused by name
        except (KeyError, TypeError):
            raise UnknownTransport(str(name), sorted(self._transports)) from None

    def find(self, name: str, version: int) -> Definition | None:
        """The definition of exactly this version."""
        versions = self._versions.get(name)
        return None if versions is None else versions.get(version)

    def successor(self, name: str, version: int) -> Definition | None:
        """The newest later version that has an `upcast`."""
        later = [d for v, d in self._versions.get(name, {}).items() if v > version and d.owner.upcast is not None]
        return max(later, key=lambda d: d.version, default=None)

    def upcasting(self) -> list[str]:
        """Names of machines that have an `upcast`."""
        return sorted({d.name for d in self.all() if d.owner.upcast is not None})

    def resolve(self, machine: object, version: int | None = None) -> Definition:
        """The definition that a start names: by machine class, job, or name (the given or the newest version)."""
        registered = self._by_object.get(id(machine))
        if registered is not None and version is None:
            return registered[1]
        machine = machine_of(machine)
        if isinstance(machine, str):
            versions = self._versions.get(machine)
            if not versions:
                raise UnknownMachine(machine, sorted(self._versions))
            name, own = machine, max(versions)
        else:
            name, own = _identity(machine)
        found = self.find(name, own if version is None else version)
        if found is None:
            raise UnknownMachine(name if version is None else f"{name} version {version}", sorted(self._versions))
        return found


def machine_of(given: object) -> object:
    """A machine, or the machine of a compiled object such as a pipeline."""
    return given if isinstance(given, str | type | Job) else getattr(given, "machine", given)


def _identity(machine: object) -> tuple[str, int]:
    if isinstance(machine, Job) or (inspect.isclass(machine) and issubclass(machine, Machine)):
        return machine.name, machine.version
    raise InvalidInput("machine", f"expected a Machine class, a job or a name, got {machine!r}")


def define(machine: object) -> Definition:
    """The definition of a machine class, a job or a compiled object."""
    machine = machine_of(machine)
    if isinstance(machine, Job):
        return _define_job(machine)
    if inspect.isclass(machine) and issubclass(machine, Machine) and machine is not Machine:
        return _define_machine(machine)
    raise DefinitionError(f"machines: {machine!r} is neither a Machine class nor a job")


def _define_machine(machine: type[Machine]) -> Definition:
    try:
        owner = machine()
    except TypeError as error:
        raise DefinitionError(f"machine {machine.name!r} cannot be made without arguments ({error}); "
                              "pass what its steps need as Engine(resources=…)") from error
    return Definition(
        name=machine.name,
        version=machine.version,
        queue=machine.queue,
        initial=machine.initial,
        steps=MappingProxyType(dict(machine.steps)),
        state=StateType(machine.state_type),
        owner=Owner(
            owner, owner.handle, inspect.iscoroutinefunction(owner.handle), upcast=getattr(owner, "upcast", None)
        ),
        retention=machine.retention,
        pipeline=None if machine._state_from is None else PipelineSteps(machine._shape, machine._authored),  # noqa: SLF001 - pipelines are the engine's own
    )


def _define_job(defined: Job[Any, Any]) -> Definition:
    typed = {
        name: (hint, NO_DEFAULT if default is inspect.Parameter.empty else default)
        for name, (hint, default) in defined.parameters.items()
    }
    arguments = arguments_type(defined.name, typed)
    return Definition(
        name=defined.name,
        version=defined.version,
        queue=defined.queue,
        initial=STEP,
        steps=MappingProxyType(
            {STEP: Step(STEP, _job_step(defined), defined.is_async, defined.timeout, defined.transactional,
                        defined.limits)}
        ),
        state=StateType(arguments, field="args"),
        owner=Owner(defined, _job_handle(defined)),
        is_job=True,
        retention=defined.retention,
        result=result_type(defined.name, defined.returns),
    )


def _job_step(called: Job[Any, Any]) -> Callable[..., Any]:
    names: Sequence[str] = list(called.parameters)
    context = called.context_parameter

    def arguments(ctx: Context[Any]) -> dict[str, Any]:
        given = {name: getattr(ctx.state, name) for name in names}
        if context is not None:
            given[context] = ctx
        return given

    if called.is_async:

        async def run_async(_: object, ctx: Context[Any]) -> Outcome:
            return Done(await called.function(**arguments(ctx)))

        return run_async

    def run_sync(_: object, ctx: Context[Any]) -> Outcome:
        return Done(called.function(**arguments(ctx)))

    return run_sync


def _job_handle(failed: Job[Any, Any]) -> Callable[[BaseException, Context[Any]], Outcome]:
    def handle(error: BaseException, ctx: Context[Any]) -> Outcome:
        hopeless = isinstance(error, Cancel | InvalidInput)  # the same arguments give the same refusal
        if hopeless or ctx.attempt + 1 >= failed.max_attempts:
            return Stop(error)
        return Retry(failed.backoff(ctx.attempt))

    return handle
