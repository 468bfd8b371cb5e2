"""A started instance, for blocking code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from stepwell._client.client import Handle
from stepwell._core.registry import Definition
from stepwell.engine import Engine
from stepwell.errors import Duplicate
from stepwell.outcomes import Result, Result_co
from stepwell.sync.blocking import DEFAULT_CALL, Act, Ask, CallOptions, HasMethods, blocking

P = ParamSpec("P")
R = TypeVar("R")


class SyncHandle(Generic[Result_co]):
    """A started instance. It outlives `close()` and may be used after a fork: it holds only the id of the instance."""

    __slots__ = ("_ask_engine", "_definition", "id", "key")

    def __init__(
        self, ask_engine: Ask, instance_id: int, key: str | None = None, definition: Definition | None = None
    ) -> None:
        self._ask_engine = ask_engine
        self._definition = definition
        self.id = instance_id
        self.key = key

    get = blocking(Handle.get)
    wait = blocking(Handle.wait)
    signal = blocking(Handle.signal)
    cancel = blocking(Handle.cancel)

    def result(self, timeout: float | timedelta | None = None) -> Result_co:
        """Its result, once it is done. Raises InstanceFailed, InstanceCancelled, TimeoutError or InvalidResult."""
        # Not wrapped like the others: a wrapper would not know the type of the result.
        def act(handle: Handle[Result_co], left: float | None) -> Awaitable[Result_co]:
            return handle.result(timeout if left is None else left)

        return self._ask("result", act, CallOptions(timeout=timeout))

    def _ask(self, method: str, act: Act[Handle[Result_co], R], options: CallOptions = DEFAULT_CALL) -> R:
        def ask(engine: Engine, left: float | None) -> Awaitable[R]:
            operations = engine._operations  # noqa: SLF001 - as engine.start passes them on
            return act(Handle(operations, self.id, self.key, self._definition), left)

        return self._ask_engine(f"handle({self.id}).{method}", ask, options)

    def __repr__(self) -> str:
        return f"<SyncHandle #{self.id}>" if self.key is None else f"<SyncHandle #{self.id} {self.key!r}>"


def returning_handle(
    method: Callable[Concatenate[Engine, P], Coroutine[Any, Any, Handle[Result]]],
) -> Callable[Concatenate[Any, P], SyncHandle[Result]]:
    """The blocking twin of a method that returns a handle."""
    call = blocking(method)

    @wraps(method)
    def call_blocking(self: HasMethods, /, *args: P.args, **kwargs: P.kwargs) -> SyncHandle[Result]:
        return _blocking_twin(self._ask, call(self, *args, **kwargs))

    return call_blocking


def returning_handles(
    method: Callable[Concatenate[Engine, P], Coroutine[Any, Any, list[Handle[Result] | Duplicate]]],
) -> Callable[Concatenate[Any, P], list[SyncHandle[Result] | Duplicate]]:
    """The blocking twin of a method that returns many."""
    call = blocking(method)

    @wraps(method)
    def call_blocking(self: HasMethods, /, *args: P.args, **kwargs: P.kwargs) -> list[SyncHandle[Result] | Duplicate]:
        return [
            given if isinstance(given, Duplicate) else _blocking_twin(self._ask, given)
            for given in call(self, *args, **kwargs)
        ]

    return call_blocking


def _blocking_twin(ask: Ask, given: Handle[Result]) -> SyncHandle[Result]:
    return SyncHandle(ask, given.id, given.key, given._definition)  # noqa: SLF001 - the two belong together
