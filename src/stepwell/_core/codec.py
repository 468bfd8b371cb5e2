"""Between an author's values and the JSON text that is stored.

    admit    at a door:     mapping or object → checked against the type, defaults filled → text
    encode   after a step:  object → text that is known to decode again
    decode   before a step: text → object

msgspec does the work; `scan` finds what it would change in silence, and names the place of what it refuses.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, get_args, get_origin

import msgspec
from msgspec.inspect import CustomType, DataclassType, DictType, StructType, TypedDictType

from stepwell._core.jsonb import as_jsonb
from stepwell._core.places import ALLOWED, RESULT, Place, Record, Survey, is_model
from stepwell._core.scan import MAX_DIGITS, scan
from stepwell.errors import DefinitionError, InvalidInput, InvalidPayload, InvalidState, PayloadTooLarge

NO_DEFAULT: Final = msgspec.NODEFAULT

_DIGITS = bytes.maketrans(b"123456789", b"0" * 9)
_MANY_DIGITS = b"0" * (MAX_DIGITS + 1)
_PLAIN = frozenset({str, int, float, bool, type(None)})
_PATH = re.compile(r"(.*) - at (`key` in )?`\$([^`]*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")


class _ModelRefused(ValueError):
    """A pydantic model refused a value; msgspec wraps this in an error that knows where the model is."""

    def __init__(self, cause: Any) -> None:
        first = cause.errors(include_url=False, include_context=False, include_input=False)[0]
        super().__init__(first["msg"])
        self.path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])


@cache
def _model_options() -> tuple[dict[str, bool], dict[str, bool]]:
    """How to dump a model and read it back whatever its aliases are; before pydantic 2.11 only by alias."""
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
    raise TypeError(f"objects of type {_type_name(value)} can not be stored")


def _model_from_store(kind: Any, value: object) -> object:
    if kind is object or isinstance(value, kind):
        return value
    _, reading = _model_options()
    try:
        # JSON mode, since a strict model takes a datetime from a string only there.
        return kind.model_validate_json(_ENCODER.encode(value), **reading)
    except sys.modules["pydantic_core"].ValidationError as error:
        raise _ModelRefused(error) from error


def _model_at_door(kind: Any, value: object) -> object:
    if kind is object or isinstance(value, kind):
        return value
    _, reading = _model_options()
    try:
        return kind.model_validate(value, **reading)
    except sys.modules["pydantic_core"].ValidationError:
        return _model_from_store(kind, value)


_ENCODER = msgspec.json.Encoder(enc_hook=_unknown_to_encoder)
_DECODER = msgspec.json.Decoder()


class StateType:
    """How the states of one machine, or the arguments of one job, are checked, encoded and decoded."""

    def __init__(self, kind: Any, *, field: str = "state") -> None:
        self.field = field
        self._kind = dict[str, Any] if kind in (None, dict) else kind
        self._class: Any = get_origin(self._kind) or self._kind
        self._name = getattr(self._class, "__qualname__", str(self._class))
        survey = Survey(self._kind)
        _check_kind(self._kind, self._class, survey)
        self._place = survey.place
        self._risky = survey.risky
        self._is_exact = survey.exact
        self._is_mapping = self._class is dict or isinstance(survey.node, TypedDictType)
        try:
            self._decoder = decoder_of(self._kind)
        except TypeError as error:
            raise DefinitionError(f"{self._name}: {error}") from error
        self._record = survey.place.records.get(self._class, Record())
        # A plain dict takes whatever the scan passes; there is no type to decode it against.
        self._verifier = None if kind in (None, dict) else self._decoder
        self._reader = self._decode_known if self._record.forbids_unknown else self._decoder.decode

    def admit(self, value: object) -> str:
        """The text to store for a value handed to a door; None stands for a state of defaults."""
        if value is None:
            value = {}
        if type(value) is self._class and not self._is_mapping:
            return self.encode(value)
        if type(value) is not dict and not isinstance(value, Mapping):
            raise InvalidState(self.field, f"expected {self._name} or a mapping, got {_type_name(value)}")
        return self.encode(value if self._verifier is None else read(self._made, value, self.field))

    def _made(self, mapping: Mapping[Any, object]) -> object:
        if not self._risky and self._is_flat(mapping):
            try:
                return msgspec.convert(mapping, self._kind, dec_hook=_model_at_door)
            except Exception:  # noqa: BLE001, S110  the way below finds the words for it
                pass
        scan(mapping, self._place, self.field, thorough=True)
        made = msgspec.convert(mapping, self._kind, str_keys=True, dec_hook=_model_at_door)
        # The second scan sees what the first could not: a naive datetime given as text, defaults to fill in.
        scan(made, self._place, self.field, thorough=False)
        return made

    def _is_flat(self, mapping: Mapping[Any, object]) -> bool:
        """Whether it has nothing but known fields with plain values: then encoding it sees all that a scan would."""
        return mapping.keys() <= self._record.names.keys() and _PLAIN.issuperset(map(type, mapping.values()))

    def encode(self, value: object) -> str:
        """The text to store for a state."""
        return self._written(value, None)[0]

    def _written(self, value: object, encoded: bytes | None) -> tuple[str, Any]:
        """The text to store for a state, and what it reads as; `encoded`, if it is encoded already."""
        if type(value) is not self._class and not (self._is_mapping and isinstance(value, Mapping)):
            raise InvalidState(self.field, f"expected {self._name}, got {_type_name(value)}")
        if self._record.defaults and self._record.complete(value):
            encoded = None
        return write(value, self._place, self.field, risky=self._risky, decoder=self._verifier, encoded=encoded)

    def changed(self, value: object, mark: bytes | None) -> tuple[str | None, Any]:
        """The text to store for a state after a step, and what it reads as, if that is known; None and None if it is
        as it was when the mark was made."""
        encoded = self.mark(value)
        return (None, None) if mark is not None and encoded == mark else self._written(value, encoded)

    def mark(self, value: object) -> bytes | None:
        """What tells later whether the author has changed this state; None if that can not be told."""
        try:
            return _ENCODER.encode(value)
        except Exception:  # noqa: BLE001 - a serializer of the author may raise anything; `encode` says it well
            return None

    def decode(self, text: str) -> Any:
        """The state in a stored text; fields its type does not have are left out."""
        return read(self._reader, text, self.field)

    def as_stored(self, text: str) -> str:
        """A text of ours as the database gives it back; the same object, if that is the same."""
        return text if self._is_exact else as_jsonb(text, is_mapping=self._is_mapping)

    def _decode_known(self, text: str) -> Any:
        """Reads with a type that forbids unknown fields; a stored one may be from when it had them."""
        try:
            return self._decoder.decode(text)
        except msgspec.ValidationError:
            stored = msgspec.json.decode(text, type=dict[str, Any])
            names = {*self._record.names, self._record.tag_field}
            known = {name: value for name, value in stored.items() if name in names}
            return self._decoder.decode(_ENCODER.encode(known))


def decoder_of(kind: Any) -> msgspec.json.Decoder[Any]:
    """Reads stored JSON as this type; TypeError if msgspec has no way to."""
    return msgspec.json.Decoder(kind, dec_hook=_model_from_store)


def encode_value(value: object, field: str) -> str:
    """The text of a result or a payload: any JSON value, with typed objects anywhere in it."""
    return write(value, RESULT, field, risky=True, decoder=None)[0]


def encode_typed(value: object, field: str, place: Place | None, decoder: msgspec.json.Decoder[Any] | None) -> str:
    """The text of a value that may be of a type; an object of the type itself may have what plain JSON has not, as a
    datetime."""
    try:
        return encode_value(value, field)
    except InvalidInput:
        if place is None:
            raise
        return write(value, place, field, risky=True, decoder=decoder)[0]


def decode_value(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidPayload("value", f"can not be read as JSON: {error}") from error


def check_size(text: str, field: str, limit: int) -> None:
    size = len(text) if text.isascii() else len(text.encode())
    if size > limit:
        raise PayloadTooLarge(field, size, limit)


def arguments_type(name: str, parameters: Mapping[str, tuple[Any, Any]]) -> type:
    """The type of a job's arguments, from its parameters: name → (annotation, default or NO_DEFAULT)."""
    fields = [(parameter, annotation, _field(default))
              for parameter, (annotation, default) in parameters.items()]
    try:
        return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)
    except TypeError as error:
        raise DefinitionError(f"job {name!r}: {error}") from error


def _field(default: Any) -> Any:
    if isinstance(default, (list, dict, set, bytearray)):
        return msgspec.field(default_factory=lambda: copy.deepcopy(default))
    return msgspec.field(default=default)


def _check_kind(kind: Any, cls: Any, survey: Survey) -> None:
    match survey.node:
        case DictType():
            is_allowed = get_args(kind)[:1] == (str,)
        case StructType(array_like=array_like):
            is_allowed = not array_like
        case DataclassType():
            is_allowed = dataclasses.is_dataclass(cls)
        case CustomType():
            is_allowed = is_model(cls) and not getattr(cls, "__pydantic_root_model__", False)
        case node:
            is_allowed = isinstance(node, TypedDictType)
    if not is_allowed:
        name = getattr(cls, "__qualname__", cls)
        raise DefinitionError(f"{name} can not be a state, which has named fields; use {ALLOWED}")


def _is_suspect(text: str, encoded: bytes) -> bool:
    """Whether a NUL or too long an integer may be inside; the scan clears a string that only looks so."""
    if "\\" in text and "\\u0000" in text:
        return True
    if len(encoded) <= MAX_DIGITS:
        return False
    sampled = encoded[::MAX_DIGITS]  # so long a run of digits has one of these places
    return len(sampled.translate(None, b"0123456789")) < len(sampled) and _MANY_DIGITS in encoded.translate(_DIGITS)


def write(
    value: object, place: Place, field: str, *, risky: bool, decoder: msgspec.json.Decoder[Any] | None,
    encoded: bytes | None = None,
) -> tuple[str, Any]:  # fmt: skip
    """The text of a value that fits its place, and, with a decoder, what it reads as: so it is known to."""
    again = None
    try:
        if risky:
            scan(value, place, field, thorough=False)
        if encoded is None:
            encoded = _ENCODER.encode(value)
        text = encoded.decode()  # to look for something in bytes takes five times as long
        suspect = _is_suspect(text, encoded)
        if suspect or (not risky and "null" in text):
            scan(value, place, field, thorough=suspect)
        if decoder is not None:
            # Assignments are not checked; what would not decode must not be committed.
            again = decoder.decode(encoded)
    except InvalidInput:
        raise
    except Exception as error:  # noqa: BLE001  serializers, properties and __post_init__ are the author's code
        raise _explain(error, value, place, field) from _original(error)
    return text, again


def read(work: Callable[[Any], Any], given: object, field: str) -> Any:
    """What `work` makes of it; whatever it raises becomes an InvalidInput that names the place."""
    try:
        return work(given)
    except InvalidInput:
        raise
    except Exception as error:  # noqa: BLE001  validators, properties and __post_init__ are the author's code
        raise _refusal(error, field) from _original(error)


def _explain(error: Exception, value: object, place: Place, field: str) -> InvalidInput:
    """The refusal for a failed encoding; the scan knows the place better than the encoder does."""
    try:
        read(lambda root: scan(root, place, field, thorough=True), value, field)
    except InvalidInput as refusal:
        return refusal
    if isinstance(error, msgspec.ValidationError):
        return _refusal(error, field)
    if isinstance(error, (RecursionError, OverflowError)):
        return InvalidPayload(field, f"too deep or too large to be stored: {error}")
    return InvalidState(field, f"can not be encoded: {type(error).__name__}: {error}")


def _refusal(error: Exception, field: str) -> InvalidState:
    """msgspec's error with its path in our words: `state.a.b: expected int, got str`."""
    if not isinstance(error, msgspec.ValidationError):
        return InvalidState(field, f"can not be read: {type(error).__name__}: {error}")
    problem, path = str(error), ""
    if found := _PATH.fullmatch(problem):
        problem, in_key, path = found.groups()
        problem = f"a key: {problem}" if in_key else problem
    if error.__cause__ is not None:
        return InvalidState(field + path + getattr(error.__cause__, "path", ""), problem)
    if missing := _MISSING.fullmatch(problem):
        return InvalidState(field + path, f"required field {missing[1]!r} is missing")
    return InvalidState(field + path, (problem[:1].lower() + problem[1:]).replace("`", ""))


def _original(error: BaseException) -> BaseException:
    """The author's own error, out of msgspec's wrapping and ours."""
    while isinstance(error, (msgspec.ValidationError, _ModelRefused)) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _type_name(value: object) -> str:
    return type(value).__qualname__
