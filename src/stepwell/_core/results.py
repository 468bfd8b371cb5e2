"""Results: stored as any value is; a job's comes back as what its function says it returns.

    encode   after a step:   value → text; what only the annotation makes storable (a datetime, a set) is tried as that
    decode   at the handle:  the JSON value that was stored → the annotated type

Nothing is refused for not fitting its annotation when it is stored: by then the job's effects have happened. Who reads
it is told.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from types import NoneType
from typing import Any, Final, get_origin

import msgspec

from stepwell._core.codec import decoder_of, encode_value, read, write
from stepwell._core.places import Place, Survey
from stepwell.errors import DefinitionError, InvalidInput

FIELD = "result"
_UNTYPED = (Any, object, None, NoneType)
_NEVER_STORED = (
    AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator, complex, range, type,
)  # fmt: skip


class ResultType:
    """How the results of one machine or job are stored and read."""

    def __init__(self, place: Place | None = None, decoder: msgspec.json.Decoder[Any] | None = None) -> None:
        self._place = place
        self._decoder = decoder

    def encode(self, value: object) -> str:
        """The text to store."""
        try:
            return encode_value(value, FIELD)
        except InvalidInput as refusal:
            if self._place is None:
                raise
            try:
                return write(value, self._place, FIELD, risky=True, decoder=self._decoder)[0]
            except InvalidInput:
                raise refusal from None

    def decode(self, stored: Any) -> Any:
        """The result in a stored value; an InvalidInput that names the place if it does not fit."""
        decoder = self._decoder
        if decoder is None:
            return stored
        text = encode_value(stored, FIELD)
        return read(decoder.decode, text, FIELD)


UNTYPED: Final = ResultType()


def result_type(job: str, returns: Any) -> ResultType:
    """The results of a job that is annotated to return this; untyped where JSON has no one way back to it.

    A plain class is no error: an object of a subclass may well be stored.
    """
    if returns in _UNTYPED:
        return UNTYPED
    kind = get_origin(returns) or returns
    if kind in _NEVER_STORED:
        raise DefinitionError(f"job {job}: it returns {_shown(returns)}, which can not be stored; {_advice(kind)}")
    try:
        return ResultType(Survey(returns).place, decoder_of(returns))
    except (DefinitionError, TypeError):
        return UNTYPED


def _advice(kind: object) -> str:
    if kind in (Awaitable, Coroutine):
        return "write it as `async def`, annotated with the value itself"
    return "return a value that JSON has, or a dataclass, a msgspec.Struct or a pydantic model"


def _shown(returns: Any) -> str:
    return returns.__qualname__ if isinstance(returns, type) else str(returns)
