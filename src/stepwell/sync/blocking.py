"""Makes a blocking method of an async one, with the same signature for readers, mypy and pyright."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from inspect import signature
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar

from stepwell._client.call_timeout import Timeout
from stepwell.sync.relay import Relay

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CallOptions:
    """How a call is made in the loop thread."""

    opened: bool = True  # False: the act opens what it needs
    relay: Relay | None = None  # to the connection of the caller
    timeout: Timeout | None = None  # of the call, including the opening


DEFAULT_CALL = CallOptions()
Act: TypeAlias = Callable[[T, float | None], Awaitable[R]]
"""The work with the engine, or a part of it; its argument is what the opening has left of the call's timeout."""


class Ask(Protocol):
    """Runs an act in the loop thread, and waits for it. `method` is its name in errors."""

    def __call__(self, method: str, act: Act[Any, R], options: CallOptions = DEFAULT_CALL) -> R: ...


class HasMethods(Protocol):
    """An object with blocking methods, which run in its twin in the loop thread."""

    @property
    def _ask(self) -> Ask: ...


class HasContexts(Protocol):
    """An object with blocking contexts, which its twin in the loop thread enters and leaves."""

    def _hold(
        self, method: str, context: Callable[[Any], AbstractAsyncContextManager[R]]
    ) -> AbstractContextManager[R]: ...


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], *, opened: bool = True
) -> Callable[Concatenate[Any, P], R]:
    """The blocking twin of a method. `opened=False`: the method itself opens what it needs."""
    name = method.__name__
    place = list(signature(method).parameters).index("timeout") - 1  # its position, if it is given without its name

    @wraps(method)
    def call(self: HasMethods, /, *args: P.args, **kwargs: P.kwargs) -> R:
        connection = kwargs.get("connection")
        relay = None if connection is None else Relay(connection)
        options: dict[str, Any] = dict(kwargs) if relay is None else {**kwargs, "connection": relay}
        timeout: Any = args[place] if place < len(args) else kwargs.get("timeout")

        def act(twin: Any, left: float | None) -> Awaitable[R]:
            order: list[Any] = list(args)
            if left is not None and place < len(args):
                order[place] = left
            elif left is not None:
                options["timeout"] = left
            given: Awaitable[R] = getattr(twin, name)(*order, **options)
            return given

        return self._ask(name, act, CallOptions(opened, relay, timeout))

    return call


def blocking_context(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[R]],
) -> Callable[Concatenate[Any, P], AbstractContextManager[R]]:
    """The blocking twin of a method that returns an async context."""
    name = method.__name__

    @wraps(method)
    def call(self: HasContexts, /, *args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[R]:
        return self._hold(name, lambda twin: getattr(twin, name)(*args, **kwargs))

    return call
