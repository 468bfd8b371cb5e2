"""Types of replies: shown as JSON Schema, checked and read, and found again by a process that did not ask."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from functools import lru_cache
from typing import Any, Final

import msgspec

from stepwell._core.codec import decoder_of, encode_value, read, write
from stepwell._core.places import Place, Survey, is_model
from stepwell._core.references import refer, resolve, shown
from stepwell.errors import InvalidInput, InvalidOutcome

FIELD: Final = "reply"
_ANY: Final = (Any, object, None)
_ANYTHING: Final = '["any"]'
_ENCODER = msgspec.json.Encoder(order="deterministic")


class ReplyType(msgspec.Struct, frozen=True):
    """One type of replies."""

    id: str
    name: str  # as people call it
    reference: str  # JSON: where it is found again
    schema: str | None  # JSON Schema; None: anything
    place: Place | None = None
    decoder: Any = None

    def encode(self, value: object) -> str:
        """The text of a reply; an object of the type itself may have what plain JSON has not, as a datetime."""
        try:
            return encode_value(value, FIELD)
        except InvalidInput:
            if self.place is None:
                raise
            return write(value, self.place, FIELD, risky=True, decoder=self.decoder)

    def decode(self, text: str) -> Any:
        """The typed reply in a text; an InvalidInput that names the place if it does not fit."""
        return msgspec.json.decode(text) if self.decoder is None else read(self.decoder.decode, text, FIELD)


def reply_type(kind: Any) -> ReplyType:
    """The type that a question was asked with."""
    if isinstance(kind, Hashable):
        return _cached(kind)
    return _made(kind)


def find_type(reference: str, home: str) -> ReplyType | None:
    """The type stored under this reference, if this process has it; `home` is the module of the machine that asked."""
    try:
        kind = resolve(msgspec.json.decode(reference), home)
    except LookupError:
        return None
    return reply_type(kind)


def _made(kind: Any) -> ReplyType:
    if any(kind is any_ for any_ in _ANY):
        return ReplyType(_hash(_ANYTHING, None), "anything", _ANYTHING, None)
    try:
        decoder, place = decoder_of(kind), Survey(kind).place
    except Exception as error:  # the author's type may be anything
        raise InvalidOutcome(FIELD, f"{shown(kind)} can not be read from JSON: {error}") from error
    try:
        referred = refer(kind)
    except LookupError:
        raise InvalidOutcome(FIELD, f"{shown(kind)} can not be found again by another process; use a class that is "
                             "defined at the top of a module or inside the machine, or a list, dict, tuple or union "
                             "of such") from None
    reference = _ENCODER.encode(referred).decode()
    schema = _schema(kind)
    return ReplyType(_hash(reference, schema), shown(kind), reference, schema, place, decoder)


_cached = lru_cache(maxsize=1_000)(_made)


def _hash(reference: str, schema: str | None) -> str:
    return hashlib.sha256(f"{reference}\x1f{schema}".encode()).hexdigest()[:24]


def _schema(kind: Any) -> str | None:
    """JSON Schema of a type."""
    try:
        return _ENCODER.encode(kind.model_json_schema() if is_model(kind) else _schema_of_mixed(kind)).decode()
    except Exception as error:  # the author's type may be anything
        raise InvalidOutcome(FIELD, f"{shown(kind)} has no JSON Schema: {error}") from error


def _schema_of_mixed(kind: Any) -> dict[str, Any]:
    """JSON Schema of a type, with that of pydantic models in it; where two have one name, models are anything."""
    inner: dict[str, Any] = {}

    def of_model(model: Any) -> dict[str, Any]:
        schema: dict[str, Any] = model.model_json_schema()
        inner.update(schema.pop("$defs", {}))
        return schema

    schema = msgspec.json.schema(kind, schema_hook=of_model)
    if not inner:
        return schema
    own = schema.setdefault("$defs", {})
    if own.keys() & inner.keys():
        return msgspec.json.schema(kind, schema_hook=lambda model: {"title": model.__name__})
    own.update(inner)
    return schema
