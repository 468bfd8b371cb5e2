"""Makes a blocking method of an async one, with the same signature for people, mypy and pyright."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from stepwell.sync.relay import Relay

P = ParamSpec("P")
R = TypeVar("R")


class Ask(Protocol):
    """Has something done in the loop thread, and waits for it. `door` is its name in errors.

    `opened=False` leaves it to the act to open what it needs; `relay` has the caller's connection.
    """

    def __call__(
        self, door: str, act: Callable[[Any], Awaitable[R]], *, opened: bool = True, relay: Relay | None = None
    ) -> R: ...


class Asking(Protocol):
    """Something with blocking methods: they ask its twin in the loop thread."""

    @property
    def _ask(self) -> Ask: ...


class Staying(Protocol):
    """Something with blocking contexts: its twin in the loop thread enters and leaves them."""

    def _stay(
        self, door: str, context: Callable[[Any], AbstractAsyncContextManager[R]]
    ) -> AbstractContextManager[R]: ...


def blocking(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]], *, opened: bool = True
) -> Callable[Concatenate[Any, P], R]:
    """The blocking twin of a method. `opened=False`: the method itself opens what it needs."""
    name = method.__name__

    @wraps(method)
    def call(self: Asking, /, *args: P.args, **kwargs: P.kwargs) -> R:
        connection = kwargs.get("connection")
        relay = None if connection is None else Relay(connection)
        options = dict(kwargs) if relay is None else {**kwargs, "connection": relay}

        def act(twin: Any) -> Awaitable[R]:
            given: Awaitable[R] = getattr(twin, name)(*args, **options)
            return given

        return self._ask(name, act, opened=opened, relay=relay)

    return call


def staying(
    method: Callable[Concatenate[Any, P], AbstractAsyncContextManager[R]],
) -> Callable[Concatenate[Any, P], AbstractContextManager[R]]:
    """The blocking twin of a method that gives an async context."""
    name = method.__name__

    @wraps(method)
    def call(self: Staying, /, *args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[R]:
        return self._stay(name, lambda twin: getattr(twin, name)(*args, **kwargs))

    return call
