"""Types of requests: a request is checked if its author has declared a type."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any

import msgspec

from stepwell._core.serialization.codec import encode_typed, read
from stepwell._core.serialization.reply_type import is_anything, readable
from stepwell._core.serialization.type_ref import shown
from stepwell._core.serialization.type_shape import Place
from stepwell.errors import InvalidOutcome, InvalidState


class RequestType(msgspec.Struct, frozen=True):
    """One type of requests."""

    name: str  # its readable name
    place: Place
    decoder: Any

    def encode(self, value: object, field: str) -> str:
        """The text of a request; InvalidOutcome names the path of a value that does not fit."""
        try:
            text = encode_typed(value, field, self.place, self.decoder)
            read(self.decoder.decode, text, field)
        except InvalidState as error:
            raise InvalidOutcome(error.field, error.problem) from error
        return text


def request_type(kind: Any) -> RequestType | None:
    """The type of requests; None: any request."""
    return _cached(kind) if isinstance(kind, Hashable) else _made(kind)


def _made(kind: Any) -> RequestType | None:
    return None if is_anything(kind) else RequestType(shown(kind), *readable(kind, "request"))


_cached = lru_cache(maxsize=1_000)(_made)
