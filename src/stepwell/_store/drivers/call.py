"""One call of an SQL function on a caller's connection, independent of the driver."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from stepwell.errors import InvalidInput, IsolationTooHigh

Rows = Sequence[Sequence[Any]]
Kind = Literal["text", "jsonb", "bigint", "boolean"]


@dataclass(frozen=True, slots=True)
class Argument:
    """A named argument of an SQL function; JSON travels as text."""

    name: str
    kind: Kind
    value: str | int | bool | None


@dataclass(frozen=True, slots=True)
class Call:
    """An SQL function of our schema, its arguments, and the columns of its result."""

    schema: str
    function: str
    arguments: tuple[Argument, ...]
    columns: tuple[str, ...]

    @property
    def values(self) -> list[str | int | bool | None]:
        return [argument.value for argument in self.arguments]

    def sql(self, placeholder: Callable[[int], str]) -> str:
        """The statement, with the driver's placeholders, counted from 1.

        Every value is cast from a plain type, so that codecs of the caller have no effect.
        """
        given = []
        for number, argument in enumerate(self.arguments, start=1):
            value = f"cast({placeholder(number)} as {'text' if argument.kind == 'jsonb' else argument.kind})"
            given.append(f"{argument.name} => " + (f"cast({value} as jsonb)" if argument.kind == "jsonb" else value))
        return f"select {', '.join(self.columns)} from {self.schema}.{self.function}({', '.join(given)})"  # noqa: S608 - our own names


class Borrowed(ABC):
    """A caller's connection: async."""

    @abstractmethod
    async def fetch(self, call: Call) -> Rows:
        """Send the call inside the caller's transaction."""


class Lent(ABC):
    """A caller's connection: blocking, to be used in the caller's thread only."""

    @abstractmethod
    def fetch(self, call: Call) -> Rows:
        """Send the call inside the caller's transaction."""


@contextmanager
def refusals() -> Iterator[None]:
    """Raise refusals of our SQL functions as our errors. Other errors of the driver reach the caller unchanged."""
    try:
        yield
    except Exception as error:
        ours = _ours(error)
        if ours is None:
            raise
        state, message = ours
        field, _, problem = message.partition(": ")
        raise (IsolationTooHigh(problem) if state == "SW005" else InvalidInput(field, problem)) from error


def _ours(error: BaseException) -> tuple[str, str] | None:
    """Our SQLSTATE and message, from the error of the driver or of a library around it."""
    seen: BaseException | None = error
    while seen is not None:
        state = getattr(seen, "sqlstate", None) or getattr(seen, "pgcode", None)
        if isinstance(state, str):
            return (state, str(seen).splitlines()[0].removeprefix("ERROR:  ")) if state.startswith("SW") else None
        seen = getattr(seen, "orig", None) or seen.__cause__
    return None
