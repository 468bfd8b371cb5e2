"""Types of replies: shown as JSON Schema, checked and read, and found again by a process that did not ask."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, Final

import msgspec

from stepwell._core.codec import decoder_of, encode_typed, read
from stepwell._core.places import Place, Survey, is_model
from stepwell._core.references import refer, refer_function, resolve, resolve_function, shown
from stepwell.errors import InvalidOutcome

FIELD: Final = "reply"
_ANYTHING: Final = '["any"]'
_PROJECTED: Final = "projected"
_ENCODER = msgspec.json.Encoder(order="deterministic")


class Projected(msgspec.Struct, frozen=True):
    """What to ask for where the other side sends only some facts, and a function makes the reply of them."""

    request: Any
    facts: Any
    projector: Callable[..., Any]
    output: Any


class Projection(msgspec.Struct, frozen=True):
    """How a reply is made: of the request, of the facts, and of what is known about the answer."""

    request: ReplyType
    facts: ReplyType
    function: Callable[..., Any]


class ReplyType(msgspec.Struct, frozen=True):
    """One type of replies."""

    id: str
    name: str  # as people call it
    reference: str  # JSON: where it is found again
    schema: str | None  # JSON Schema; None: anything
    place: Place | None = None
    decoder: Any = None
    projection: Projection | None = None

    def encode(self, value: object) -> str:
        """The text of a reply."""
        return encode_typed(value, FIELD, self.place, self.decoder)

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
    referred = msgspec.json.decode(reference)
    parts = referred[1:] if referred[0] == _PROJECTED else ()
    try:
        kind = resolve(parts[-1] if parts else referred, home)
    except LookupError:
        return None
    if parts:
        try:
            return reply_type(
                Projected(resolve(parts[0], home), resolve(parts[1], home), resolve_function(parts[2], home), kind)
            )
        except LookupError:
            pass  # it can still be read; only who answers needs its projector
    return reply_type(kind)


def is_anything(kind: Any) -> bool:
    """Whether a type is none: whatever is JSON is of it."""
    return any(kind is any_ for any_ in (Any, object, None))


def readable(kind: Any, field: str) -> tuple[Place, msgspec.json.Decoder[Any]]:
    """What a type allows where, and what reads it; refused if there is no way to."""
    try:
        decoder = decoder_of(kind)
        return Survey(kind).place, decoder
    except Exception as error:  # the author's type may be anything
        raise InvalidOutcome(field, f"{shown(kind)} can not be read from JSON: {error}") from error


def is_projected(reference: str) -> bool:
    """Whether a projector makes the replies of the type under this reference."""
    return bool(msgspec.json.decode(reference)[0] == _PROJECTED)


def project(kind: ReplyType, request: str, facts: str, answered: object) -> str:
    """The reply that a type's projector makes of the facts that were sent; it is of the type, or an InvalidInput."""
    assert kind.projection is not None  # noqa: S101 - the caller has looked
    made = kind.projection.function(
        kind.projection.request.decode(request), kind.projection.facts.decode(facts), answered
    )
    reply = kind.encode(made)
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
        raise InvalidOutcome(FIELD, f"{shown(kind)} can not be found again by another process; use a class that is "
                             "defined at the top of a module or inside the machine, or a list, dict, tuple or union "
                             "of such") from None
    reference = _ENCODER.encode(referred).decode()
    schema = _schema(kind)
    return ReplyType(_hash(reference, schema), shown(kind), reference, schema, place, decoder)


def _projected(kind: Projected) -> ReplyType:
    """The type of what is stored, with the schema of what is sent; its id pins the projector."""
    request, facts, output = reply_type(kind.request), reply_type(kind.facts), reply_type(kind.output)
    try:
        function = refer_function(kind.projector)
    except LookupError as error:
        raise InvalidOutcome("projector", f"{error} can not be found again by another process; define it at the top of "
                             "a module") from None
    references = [msgspec.Raw(part.reference.encode()) for part in (request, facts)]
    reference = _ENCODER.encode([_PROJECTED, *references, function, msgspec.Raw(output.reference.encode())]).decode()
    return ReplyType(
        _hash(reference, facts.schema), facts.name, reference, facts.schema, output.place, output.decoder,
        Projection(request, facts, kind.projector),
    )  # fmt: skip


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
