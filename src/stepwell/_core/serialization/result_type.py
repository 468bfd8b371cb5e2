"""Results: any JSON value; a job's result is decoded as the annotated return type of its function.

    encode   after a step:   value → text; a value that is not plain JSON (a datetime, a set) is tried as annotated
    decode   at the handle:  the stored JSON value → the annotated type

A result that does not fit its annotation is stored anyway: the job's effects have happened. Decoding reports it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from types import NoneType
from typing import Any, Final, get_origin

import msgspec

from stepwell._core.serialization.codec import encode_value, read, write
from stepwell._core.serialization.encoder import decoder_of
from stepwell._core.serialization.type_shape import Place, Survey
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
        """The result in a stored value; InvalidInput names the path if it does not fit."""
        decoder = self._decoder
        if decoder is None:
            return stored
        text = encode_value(stored, FIELD)
        return read(decoder.decode, text, FIELD)


UNTYPED: Final = ResultType()


def result_type(job: str, returns: Any) -> ResultType:
    """The result type of a job with this return annotation; untyped if JSON cannot be decoded to it unambiguously.

    A plain class is not an error: an object of a subclass may be storable.
    """
    if returns in _UNTYPED:
        return UNTYPED
    kind = get_origin(returns) or returns
    if kind in _NEVER_STORED:
        raise DefinitionError(f"job {job}: it returns {_shown(returns)}, which cannot be stored; {_advice(kind)}")
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
