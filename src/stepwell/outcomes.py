"""The outcomes that a step or `handle` returns: small frozen values that say how the instance continues."""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypedDict

import msgspec

from stepwell.limits import LimitRef

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # every type checker has it; at run time nothing needs the default

    Result = TypeVar("Result", default=Any)
    Result_co = TypeVar("Result_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    Result = TypeVar("Result")
    Result_co = TypeVar("Result_co", covariant=True)


class Unset:
    """The type of a field that was not given: neither a value nor None."""

    def __repr__(self) -> str:
        return "UNSET"

    def __bool__(self) -> bool:
        return False


UNSET: Final = Unset()

StepRef: TypeAlias = str | Callable[..., Any]
"""A step, by reference (`self.ship`) or by name (`"ship"`)."""


KeyScope: TypeAlias = Literal["live", "forever"]


class StartOptions(TypedDict, total=False):
    """The options of one start, as `engine.start` and `Checkout.child` take them."""

    key: str | None
    key_scope: KeyScope | None
    queue: str | None
    priority: int
    delay: timedelta | None
    at: datetime | None
    step: StepRef | None
    concurrency_key: str | None
    concurrency_limit: LimitRef | None
    rate_limit: LimitRef | None
    weight: int | None
    tenant: str | None
    version: int | None


class Startable(Protocol):
    """A Machine class or a job: what has a name and a version."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> int: ...


class Entry(NamedTuple, Generic[Result_co]):
    """What `Checkout.child(...)` returns: one start, for `start_many` and `Spawn`."""

    machine: Startable | str
    state: object
    options: StartOptions


Start: TypeAlias = Entry[Any] | tuple[Startable | str, Any] | Startable | str
"""One start of many: `Checkout.child(state, …)`, (machine, state), or a machine alone."""


class Next(msgspec.Struct, frozen=True):
    """Continue at `step`, now or after `delay`; the attempt count restarts at 0. Consumes the signals of this step."""

    step: StepRef
    state: Any = UNSET
    delay: timedelta | None = None
    queue: str | None = None
    priority: int | None = None
    concurrency_key: str | Unset | None = UNSET  # unset keeps it, None removes it
    concurrency_limit: LimitRef | Unset | None = UNSET  # unset keeps it, None removes it
    rate_limit: LimitRef | Unset | None = UNSET  # for this one step; unset: what the step declares
    weight: int | None = None  # None: what the step declares, else 1


class Retry(msgspec.Struct, frozen=True):
    """Run the same step again after `delay`; the attempt count grows by one. Consumes nothing."""

    delay: timedelta = timedelta(0)
    state: Any = UNSET


@dataclass(frozen=True, slots=True, init=False)
class Await:
    """Park until a signal of one of these names arrives, or `timeout` passes; continue at `then`.

    Consumes nothing, so that repeated awaits collect signals; `consume=True` first consumes the signals of this step.
    """

    names: tuple[str, ...]
    then: StepRef
    timeout: timedelta | None
    consume: bool
    state: Any

    def __init__(
        self,
        *names: str,
        then: StepRef,
        timeout: timedelta | None = None,
        consume: bool = False,
        state: Any = UNSET,
    ) -> None:
        for field, value in (
            ("names", names), ("then", then), ("timeout", timeout), ("consume", consume), ("state", state),
        ):  # fmt: skip
            object.__setattr__(self, field, value)


class Spawn(msgspec.Struct, frozen=True):
    """Start children and park until all of them have ended; continue at `then` with `ctx.children`.

    Children are `Parcel.child(state, …)` or (machine, state). Consumes the signals of this step.
    """

    children: Sequence[Start]
    then: StepRef
    state: Any = UNSET


MAX_ITEMS = 10_000  # of a list in one request or reply, unless the Ask says otherwise

OnTimeout: TypeAlias = Literal["wake", "fail"]
"""What happens when an interaction times out: wake the instance with that status, or fail it."""


class AskEach(msgspec.Struct, frozen=True, kw_only=True):
    """What `Ask.each(...)` returns: one interaction per item; continue at `then` with `ctx.replies`, in item order."""

    transport: str
    items: Iterable[Any] | AsyncIterable[Any]
    then: StepRef
    reply: Any = Any
    window: int = 200  # open interactions of this instance that are sent at a time, in the whole cluster
    timeout: timedelta | None = None  # of each item, from the moment it may be sent
    on_timeout: OnTimeout = "wake"
    idempotency: Sequence[str] = ()
    shared: bool = False
    token: bool = False
    assignee: str | None = None
    group: str | None = None
    state: Any = UNSET
    item_step: StepRef | None = None  # of pipelines: the first step of continuations
    request_type: Any = Any  # of pipelines: what each item has to be
    await_step: str | None = None  # of pipelines: the name of the await step, as its author wrote it


class Ask(msgspec.Struct, frozen=True):
    """Ask an external system, and park until it has replied or `timeout` passes; continue at `then` with `ctx.reply`.

    `reply` is the type of the reply; one that does not fit is refused, and the interaction stays open. A list as the
    request is one interaction about many items. `idempotency` names fields of the request that form a key, by which the
    external system can recognise a repeated request; other executions have other keys, unless it is `shared`.
    With `token`, a completion needs the signed token. A list in the request or the reply has at most `max_items`; 0: as
    many as `max_payload` allows. Consumes the signals of this step.
    """

    transport: str
    request: Any
    then: StepRef
    reply: Any = Any
    timeout: timedelta | None = None
    on_timeout: OnTimeout = "wake"
    idempotency: Sequence[str] = ()
    shared: bool = False
    token: bool = False
    assignee: str | None = None
    group: str | None = None
    state: Any = UNSET
    max_items: int = MAX_ITEMS
    request_type: Any = Any  # of pipelines: what the request has to be
    await_step: str | None = None  # of pipelines: the name of the await step, as its author wrote it

    @staticmethod
    def each(
        transport: str,
        items: Iterable[Any] | AsyncIterable[Any],
        *,
        then: StepRef,
        reply: Any = Any,
        window: int = 200,
        timeout: timedelta | None = None,
        on_timeout: OnTimeout = "wake",
        idempotency: Sequence[str] = (),
        shared: bool = False,
        token: bool = False,
        assignee: str | None = None,
        group: str | None = None,
        state: Any = UNSET,
    ) -> AskEach:
        """One interaction per item, at most `window` of them sent and open at a time; without items, continue at once.
        """
        return AskEach(
            transport=transport, items=items, then=then, reply=reply, window=window, timeout=timeout,
            on_timeout=on_timeout, idempotency=idempotency, shared=shared, token=token, assignee=assignee, group=group,
            state=state,
        )  # fmt: skip


class Done(msgspec.Struct, frozen=True):
    """End the instance as done, with a result."""

    result: Any = None
    state: Any = UNSET


class Stop(msgspec.Struct, frozen=True):
    """End the instance as failed, for a reason in words or an exception."""

    reason: str | BaseException = "stopped"
    state: Any = UNSET


Outcome: TypeAlias = Next | Retry | Await | Spawn | Ask | AskEach | Done | Stop
