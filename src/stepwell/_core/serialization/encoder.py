"""The JSON encoder and decoders for authors' types; what they do with pydantic models."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import msgspec

from stepwell._core.serialization.bounds import count_values, without_strings
from stepwell._core.serialization.type_shape import is_model

MOST_IN_MODEL: Final = 12_000  # values; SQL accepts the same number in a typed reply


class ModelRefused(ValueError):
    """A pydantic model refused a value; msgspec wraps this in an error with the model's path."""

    def __init__(self, cause: Any) -> None:
        first = cause.errors(include_url=False, include_context=False, include_input=False)[0]
        super().__init__(first["msg"])
        self.path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])


@cache
def _model_options() -> tuple[dict[str, bool], dict[str, bool]]:
    """Options to dump and read a model regardless of its aliases; before pydantic 2.11 only by alias."""
    base = sys.modules["pydantic.main"].BaseModel
    if "by_name" in inspect.signature(base.model_validate).parameters:
        return {"by_alias": False}, {"by_alias": True, "by_name": True}
    return {"by_alias": True}, {}


def _unknown_to_encoder(value: Any) -> object:
    if is_model(type(value)):
        dumping, _ = _model_options()
        return value.model_dump(mode="json", round_trip=True, warnings=False, **dumping)
    match value:
        case str():
            return str.__str__(value)
        case int():
            return int.__int__(value)
        case float():
            return float.__float__(value)
        case Mapping():
            return dict(value)
    raise TypeError(f"objects of type {type_name(value)} cannot be stored")


def _model_from_store(kind: Any, value: object) -> object:
    if kind is object or isinstance(value, kind):
        return value
    return _model_from_text(kind, to_json(value))


def _model_from_text(kind: Any, encoded: bytes) -> object:
    _, reading = _model_options()
    try:
        # JSON mode, since a strict model takes a datetime from a string only there.
        return kind.model_validate_json(encoded, **reading)
    except sys.modules["pydantic_core"].ValidationError as error:
        raise ModelRefused(error) from error


def _model_of_reply(kind: Any, value: object) -> object:
    """As `_model_from_store`, for a received reply. Reading a model holds the interpreter lock to its end, so that a
    thread does not help: large replies are refused."""
    if kind is object or isinstance(value, kind):
        return value
    encoded = to_json(value)
    if len(encoded) > MOST_IN_MODEL and (values := count_values(without_strings(encoded))) > MOST_IN_MODEL:
        raise ValueError(f"{values:,} values are more than a pydantic model may have in a reply ({MOST_IN_MODEL:,}); "
                         "make the large parts of the type dataclasses or msgspec structs")
    return _model_from_text(kind, encoded)


def model_of_argument(kind: Any, value: object) -> object:
    if kind is object or isinstance(value, kind):
        return value
    _, reading = _model_options()
    try:
        return kind.model_validate(value, **reading)
    except sys.modules["pydantic_core"].ValidationError:
        return _model_from_store(kind, value)


def decoder_of(kind: Any, *, is_received: bool = False) -> msgspec.json.Decoder[Any]:
    """A decoder of stored or received JSON for this type; TypeError if msgspec has none."""
    return msgspec.json.Decoder(kind, dec_hook=_model_of_reply if is_received else _model_from_store)


def type_name(value: object) -> str:
    return type(value).__qualname__


# The bound method: to look it up on an imported encoder would cost each call a third more.
to_json: Final = msgspec.json.Encoder(enc_hook=_unknown_to_encoder).encode
