"""Types of requests: what is asked is checked, as far as its author says what it is about."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any, Final

import msgspec

from stepwell._core.codec import decoder_of, encode_value, read, write
from stepwell._core.places import Place, Survey
from stepwell._core.references import shown
from stepwell.errors import InvalidInput, InvalidOutcome, InvalidState

_ANY: Final = (Any, object, None)


class RequestType(msgspec.Struct, frozen=True):
    """One type of requests."""

    name: str  # as people call it
    place: Place
    decoder: Any

    def encode(self, value: object, field: str) -> str:
        """The text of a request; an error names the place of what does not fit."""
        try:
            return self._encode(value, field)
        except InvalidState as error:
            raise InvalidOutcome(error.field, f"{error.problem}; this question is about {self.name}") from error

    def _encode(self, value: object, field: str) -> str:
        try:
            text = encode_value(value, field)
        except InvalidInput:  # an object of the type itself may have what plain JSON has not, as a datetime
            return write(value, self.place, field, risky=True, decoder=self.decoder)[0]
        read(self.decoder.decode, text, field)
        return text


def request_type(kind: Any) -> RequestType | None:
    """The type that requests are of; None: anything may be asked."""
    return _cached(kind) if isinstance(kind, Hashable) else _made(kind)


def _made(kind: Any) -> RequestType | None:
    if any(kind is any_ for any_ in _ANY):
        return None
    try:
        return RequestType(shown(kind), Survey(kind).place, decoder_of(kind))
    except Exception as error:  # the author's type may be anything
        raise InvalidOutcome("request", f"{shown(kind)} can not be read from JSON: {error}") from error


_cached = lru_cache(maxsize=1_000)(_made)
