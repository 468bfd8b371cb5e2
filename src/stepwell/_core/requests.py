"""Types of requests: what is asked is checked, as far as its author says what it is about."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Any

import msgspec

from stepwell._core.codec import encode_typed, read
from stepwell._core.places import Place
from stepwell._core.references import shown
from stepwell._core.replies import is_anything, readable
from stepwell.errors import InvalidOutcome, InvalidState


class RequestType(msgspec.Struct, frozen=True):
    """One type of requests."""

    name: str  # as people call it
    place: Place
    decoder: Any

    def encode(self, value: object, field: str) -> str:
        """The text of a request; an error names the place of what does not fit."""
        try:
            text = encode_typed(value, field, self.place, self.decoder)
            read(self.decoder.decode, text, field)
        except InvalidState as error:
            raise InvalidOutcome(error.field, f"{error.problem}; this question is about {self.name}") from error
        return text


def request_type(kind: Any) -> RequestType | None:
    """The type that requests are of; None: anything may be asked."""
    return _cached(kind) if isinstance(kind, Hashable) else _made(kind)


def _made(kind: Any) -> RequestType | None:
    return None if is_anything(kind) else RequestType(shown(kind), *readable(kind, "request"))


_cached = lru_cache(maxsize=1_000)(_made)
