"""Types of replies: their JSON Schema, their checks, and a reference by which another process finds them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, Final

import msgspec

from stepwell._core.serialization.bounds import MOST_LONG_NUMBERS, has_many_long_numbers, uncollected
from stepwell._core.serialization.codec import encode_typed, read
from stepwell._core.serialization.encoder import decoder_of
from stepwell._core.serialization.type_ref import held_by, refer, refer_function, resolve, shown, split
from stepwell._core.serialization.type_shape import Place, Survey, is_model
from stepwell.errors import InvalidOutcome, InvalidState

FIELD: Final = "reply"
_ANYTHING: Final = '["any"]'
_PROJECTED: Final = "projected"
_LARGE: Final = 4096  # characters; larger texts are decoded without garbage collection
_ENCODER = msgspec.json.Encoder(order="deterministic")
_declared: dict[str, dict[str, tuple[Projected, ReplyType]]] = {}
"""Every type with a projector in this process: by the projector's name, then by reference."""


class Projected(msgspec.Struct, frozen=True):
    """A reply that a function, the projector, makes from facts that the external system sends."""

    request: Any
    facts: Any
    projector: Callable[..., Any]
    output: Any


class Projection(msgspec.Struct, frozen=True):
    """A projector with its types: it makes a reply from the request, the facts and the completion."""

    request: ReplyType
    facts: ReplyType
    function: Callable[..., Any]


class ReplyType(msgspec.Struct, frozen=True):
    """One type of replies."""

    id: str
    name: str  # its readable name
    reference: str  # JSON: the type reference
    schema: str | None  # JSON Schema; None: anything
    place: Place | None = None
    decoder: Any = None
    projection: Projection | None = None
    received_decoder: Any = None  # the decoder of received replies
    hashes: bool = False  # decoding may put values into sets or use them as keys

    def encode(self, value: object) -> str:
        """The text of a reply."""
        return encode_typed(value, FIELD, self.place, self.decoder)

    def decode(self, text: str) -> Any:
        """The typed reply in a text; InvalidInput names the path if it does not fit."""
        return _decoded(self.decoder, text)

    def admit(self, text: str) -> Any:
        """As `decode`, for a received text."""
        if self.hashes and has_many_long_numbers(text):
            raise InvalidState(FIELD, f"more than {MOST_LONG_NUMBERS:,} whole numbers of over 20 digits, in a type "
                               "with a set, a model or keys that are not strings; send them as strings")
        return _decoded(self.received_decoder, text)

    def check(self, text: str) -> None:
        """Refuse a received text that does not fit. Without a type everything fits, and nothing is decoded."""
        if self.received_decoder is not None:
            self.admit(text)


def reply_type(kind: Any) -> ReplyType:
    """The reply type of an Ask."""
    if isinstance(kind, Hashable):
        return _cached(kind)
    return _made(kind)


def find_type(reference: str, home: str) -> ReplyType | None:
    """The type of this stored reference, if this process has it; `home` is the module of the machine that asked."""
    try:
        return _find(msgspec.json.decode(reference), home)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):  # an unreadable reference
        return None


def _find(referred: Any, home: str) -> ReplyType:
    if referred[0] != _PROJECTED:
        return reply_type(resolve(referred, home))
    kind = resolve(referred[-1], home)
    try:
        return _find_projected(referred, home, kind) or reply_type(kind)
    except LookupError:
        return reply_type(kind)  # only a completion needs the projector; the reply can still be decoded


def _find_projected(referred: list[Any], home: str, output: Any) -> ReplyType | None:
    """The type that this process has declared with these parts: whatever a row names, only a projector that was
    declared for these types is called."""
    _, request, facts, function, _ = referred
    module, name = split(function)
    for declared, kind in _declared.get(name, {}).values():
        projector = declared.projector
        is_here = projector.__module__ in (module, home) or held_by(home, name) is projector
        if is_here and (declared.request, declared.facts, declared.output) == (
            resolve(request, home), resolve(facts, home), output,
        ):  # fmt: skip
            return kind
    return None


def is_anything(kind: Any) -> bool:
    """Whether a type means any JSON value."""
    return any(kind is any_ for any_ in (Any, object, None))


def readable(kind: Any, field: str) -> tuple[Place, msgspec.json.Decoder[Any]]:
    """The type shape and decoder of a type; InvalidOutcome if it cannot be read from JSON."""
    try:
        decoder = decoder_of(kind)
        return Survey(kind).place, decoder
    except Exception as error:  # the author's type may be anything
        raise InvalidOutcome(field, f"{shown(kind)} cannot be read from JSON: {error}") from error


def is_projected(reference: str) -> bool:
    """Whether a projector makes the replies of the type with this reference."""
    referred = msgspec.json.decode(reference)
    return isinstance(referred, list) and referred[:1] == [_PROJECTED]


def project(kind: ReplyType, request: str, facts: object, completion: object) -> str:
    """The reply that a type's projector makes from the received facts; InvalidInput if it is not of the type."""
    assert kind.projection is not None  # noqa: S101 - the caller has checked it
    reply = kind.encode(kind.projection.function(kind.projection.request.decode(request), facts, completion))
    if kind.decoder is not None:
        kind.decode(reply)
    return reply


def _made(kind: Any) -> ReplyType:
    if isinstance(kind, Projected):
        return _projected(kind)
    if is_anything(kind):
        return ReplyType(_hash(_ANYTHING, None), "anything", _ANYTHING, None)
    place, decoder = readable(kind, FIELD)
    try:
        referred = refer(kind)
    except LookupError:
        raise InvalidOutcome(FIELD, f"{shown(kind)} cannot be found by another process; use a class that is "
                             "defined at the top of a module or inside the machine, or a list, dict, tuple or union "
                             "of these") from None
    reference = _ENCODER.encode(referred).decode()
    schema = _schema(kind)
    received_decoder = decoder_of(kind, is_received=True)
    hashes = Survey(kind).hashes
    return ReplyType(
        _hash(reference, schema), shown(kind), reference, schema, place, decoder, received_decoder=received_decoder,
        hashes=hashes,
    )  # fmt: skip


def _projected(kind: Projected) -> ReplyType:
    """The type of the stored reply, with the schema of the received facts; its id includes the projector."""
    request, facts, output = reply_type(kind.request), reply_type(kind.facts), reply_type(kind.output)
    try:
        function = refer_function(kind.projector)
    except LookupError as error:
        raise InvalidOutcome("projector", f"{error} cannot be found by another process; define it at the top of "
                             "a module") from None
    references = [msgspec.Raw(part.reference.encode()) for part in (request, facts)]
    reference = _ENCODER.encode([_PROJECTED, *references, function, msgspec.Raw(output.reference.encode())]).decode()
    made = ReplyType(
        _hash(reference, facts.schema), facts.name, reference, facts.schema, output.place, output.decoder,
        Projection(request, facts, kind.projector),
    )  # fmt: skip
    _declared.setdefault(split(function)[1], {})[reference] = (kind, made)
    return made


def _decoded(decoder: msgspec.json.Decoder[Any] | None, text: str) -> Any:
    if len(text) < _LARGE:
        return msgspec.json.decode(text) if decoder is None else read(decoder.decode, text, FIELD)
    with uncollected():
        return msgspec.json.decode(text) if decoder is None else read(decoder.decode, text, FIELD)


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
    """JSON Schema of a type with pydantic models in it; if two definitions share a name, models allow anything."""
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
