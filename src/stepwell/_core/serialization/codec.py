"""Encodes authors' values as stored JSON text, and decodes them.

    admit    in an API call: mapping or object → checked against the type, defaults filled → text
    encode   after a step:   object → text that is known to decode again
    decode   before a step:  text → object

msgspec does the work; `check_json` finds what it would change silently, and names the path of a refused value.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, get_args, get_origin

import msgspec
from msgspec.inspect import CustomType, DataclassType, DictType, StructType, TypedDictType

from stepwell._core.serialization.bounds import (
    check_bounds,
    count_values,
    depth_problem,
    read_raw,
    text_problem,
    uncollected,
    without_strings,
)
from stepwell._core.serialization.json_check import check_json
from stepwell._core.serialization.jsonb import as_jsonb
from stepwell._core.serialization.type_shape import ALLOWED, RESULT, Place, Record, Survey, is_model
from stepwell.errors import DefinitionError, InvalidInput, InvalidPayload, InvalidState

NO_DEFAULT: Final = msgspec.NODEFAULT

_LARGE = 4096  # bytes; from this size a value is compared with its decoded text, instead of walked through
MOST_IN_MODEL: Final = 12_000  # values; SQL accepts the same number in a typed reply
_MOST_SCANNED = 5_000  # values in which the path of a known problem is searched
_PLAIN = frozenset({str, int, float, bool, type(None)})
_PATH = re.compile(r"(.*) - at (`key` in )?`\$([^`]*)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")


class _ModelRefused(ValueError):
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
    raise TypeError(f"objects of type {_type_name(value)} cannot be stored")


def _model_from_store(kind: Any, value: object) -> object:
    if kind is object or isinstance(value, kind):
        return value
    return _model_from_text(kind, _ENCODER.encode(value))


def _model_from_text(kind: Any, encoded: bytes) -> object:
    _, reading = _model_options()
    try:
        # JSON mode, since a strict model takes a datetime from a string only there.
        return kind.model_validate_json(encoded, **reading)
    except sys.modules["pydantic_core"].ValidationError as error:
        raise _ModelRefused(error) from error


def _model_of_reply(kind: Any, value: object) -> object:
    """As `_model_from_store`, for a received reply. Reading a model holds the interpreter lock to its end, so that a
    thread does not help: large replies are refused."""
    if kind is object or isinstance(value, kind):
        return value
    encoded = _ENCODER.encode(value)
    if len(encoded) > MOST_IN_MODEL and (values := count_values(without_strings(encoded))) > MOST_IN_MODEL:
        raise ValueError(f"{values:,} values are more than a pydantic model may have in a reply ({MOST_IN_MODEL:,}); "
                         "make the large parts of the type dataclasses or msgspec structs")
    return _model_from_text(kind, encoded)


def _model_of_argument(kind: Any, value: object) -> object:
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
    """Checks, encodes and decodes the states of one machine, or the arguments of one job."""

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
        # A plain dict takes whatever the check passes; there is no type to decode it against.
        self._verifier = None if kind in (None, dict) else self._decoder
        self._reader = self._decode_known if self._record.forbids_unknown else self._decoder.decode

    def admit(self, value: object, max_payload: int | None = None) -> str:
        """The text to store for a value from an API call; None means a state of defaults."""
        if value is None:
            value = {}
        if type(value) is self._class and not self._is_mapping:
            return self.encode(value, max_payload)
        if type(value) is not dict and not isinstance(value, Mapping):
            raise InvalidState(self.field, f"expected {self._name} or a mapping, got {_type_name(value)}")
        if self._verifier is not None:
            value = read(lambda given: self._made(given, max_payload), value, self.field)
        return self.encode(value, max_payload)

    def _made(self, mapping: Mapping[Any, object], max_payload: int | None) -> object:
        if not self._risky and self._is_flat(mapping):
            try:
                return msgspec.convert(mapping, self._kind, dec_hook=_model_of_argument)
            except Exception:  # noqa: BLE001, S110  the checks below name the problem
                pass
        if max_payload is not None and (encoded := self.mark(mapping)) is not None:
            check_bounds(encoded.decode(), self.field, max_payload)
        check_json(mapping, self._place, self.field, thorough=True)
        made = msgspec.convert(mapping, self._kind, str_keys=True, dec_hook=_model_of_argument)
        # The second check sees what the first could not: a naive datetime given as text, defaults to fill in.
        check_json(made, self._place, self.field, thorough=False)
        return made

    def _is_flat(self, mapping: Mapping[Any, object]) -> bool:
        """Whether it has only known fields with plain values: encoding finds all that a check would find."""
        return mapping.keys() <= self._record.names.keys() and _PLAIN.issuperset(map(type, mapping.values()))

    def encode(self, value: object, max_payload: int | None = None) -> str:
        """The text to store for a state."""
        return self._written(value, None, max_payload)[0]

    def _written(self, value: object, encoded: bytes | None, max_payload: int | None = None) -> tuple[str, Any]:
        """The text to store for a state, and that text decoded; `encoded`, if it is encoded already."""
        if type(value) is not self._class and not (self._is_mapping and isinstance(value, Mapping)):
            raise InvalidState(self.field, f"expected {self._name}, got {_type_name(value)}")
        if self._record.defaults and self._record.complete(value):
            encoded = None
        return write(
            value, self._place, self.field, risky=self._risky, decoder=self._verifier, encoded=encoded,
            max_payload=max_payload,
        )  # fmt: skip

    def changed(self, value: object, mark: bytes | None) -> tuple[str | None, Any]:
        """The text to store for a state after a step, and, if known, that text decoded; None and None if the state has
        not changed since the mark was made."""
        encoded = self.mark(value)
        return (None, None) if mark is not None and encoded == mark else self._written(value, encoded)

    def mark(self, value: object) -> bytes | None:
        """A mark by which `changed` detects a change of this state; None if there is no way to detect it."""
        try:
            return _ENCODER.encode(value)
        except Exception:  # noqa: BLE001 - an author's serializer may raise anything; `encode` reports it
            return None

    def decode(self, text: str) -> Any:
        """The state in a stored text; fields that its type lacks are left out."""
        return read(self._reader, text, self.field)

    def as_stored(self, text: str) -> str:
        """An encoded state as the database returns it; the same object, if that is equal."""
        return text if self._is_exact else as_jsonb(text, is_mapping=self._is_mapping)

    def _decode_known(self, text: str) -> Any:
        """Decode with a type that forbids unknown fields; a stored state may be older and have such fields."""
        try:
            return self._decoder.decode(text)
        except msgspec.ValidationError:
            stored = msgspec.json.decode(text, type=dict[str, Any])
            names = {*self._record.names, self._record.tag_field}
            known = {name: value for name, value in stored.items() if name in names}
            return self._decoder.decode(_ENCODER.encode(known))


def decoder_of(kind: Any, *, is_received: bool = False) -> msgspec.json.Decoder[Any]:
    """A decoder of stored or received JSON for this type; TypeError if msgspec has none."""
    return msgspec.json.Decoder(kind, dec_hook=_model_of_reply if is_received else _model_from_store)


def encode_value(value: object, field: str, max_payload: int | None = None) -> str:
    """The text of a result or a payload: any JSON value, with typed objects anywhere in it."""
    return write(value, RESULT, field, risky=True, decoder=None, max_payload=max_payload)[0]


def encode_raw(raw: bytes, field: str, max_payload: int) -> str:
    """The text of a payload that was received as JSON: the same as the text of its value."""
    value = read_raw(raw, field, max_payload)
    try:
        encoded = _ENCODER.encode(value)
    except (UnicodeEncodeError, RecursionError) as error:
        raise _explain(error, value, RESULT, field) from error
    text = encoded.decode()
    check_bounds(text, field, max_payload)
    if problem := text_problem(text, encoded) or depth_problem(encoded):
        raise _refuse(problem, value, RESULT, field)
    return text


def encode_typed(value: object, field: str, place: Place | None, decoder: msgspec.json.Decoder[Any] | None) -> str:
    """The text of a value that may be of a type; an object of the type may contain what plain JSON lacks, such as a
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
        raise InvalidPayload("value", f"cannot be read as JSON: {error}") from error


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
        raise DefinitionError(f"{name} cannot be a state, which has named fields; use {ALLOWED}")


def write(
    value: object, place: Place, field: str, *, risky: bool, decoder: msgspec.json.Decoder[Any] | None,
    encoded: bytes | None = None, max_payload: int | None = None,
) -> tuple[str, Any]:  # fmt: skip
    """The text of a value that fits its type shape, and, with a decoder, that text decoded, as a check.

    With `max_payload` the bounds are checked as soon as there is a text, before the walk through the value.
    """
    again = None
    try:
        if risky:
            plain = _walked(value, place, field, max_payload)
            encoded = plain if encoded is None else encoded
        if encoded is None:
            encoded = _ENCODER.encode(value)
        text = encoded.decode()  # a search in bytes takes five times as long
        if max_payload is not None:
            check_bounds(text, field, max_payload)
        if problem := text_problem(text, encoded):
            raise _refuse(problem, value, place, field)  # noqa: TRY301 - reported as all refusals are
        if not risky and "null" in text:
            check_json(value, place, field, thorough=False)
        if decoder is not None:
            # Assignments are not checked; a state that does not decode must not be committed.
            again = decoder.decode(encoded)
    except InvalidInput:
        raise
    except Exception as error:  # noqa: BLE001  serializers, properties and __post_init__ are the author's code
        raise _explain(error, value, place, field) from _original(error)
    return text, again


def _walked(value: object, place: Place, field: str, max_payload: int | None) -> bytes | None:
    """Refuse what JSON or Postgres would change. A large untyped value is mostly pure JSON: then it equals its decoded
    text, which is checked in a fiftieth of the time. Returns that text, else None."""
    if place is RESULT and isinstance(value, (dict, list)):
        encoded = _ENCODER.encode(value)
        if max_payload is not None:
            check_bounds(encoded.decode(), field, max_payload)
        if len(encoded) >= _LARGE:
            if _is_plain(value, encoded):
                return encoded
            _check_finite(value, field)
    check_json(value, place, field, thorough=False)
    return None


def _is_plain(value: object, encoded: bytes) -> bool:
    try:  # Python's decoder takes equally long for all numbers
        with uncollected():
            return bool(json.loads(encoded) == value) and depth_problem(encoded) is None
    except (ValueError, RecursionError):
        return False


def _check_finite(value: object, field: str) -> None:
    """Refuse NaN and infinities in a large value: a walk that finds nothing else may take long."""
    try:
        json.dumps(value, allow_nan=False)
    except TypeError:
        pass  # it contains more than JSON has
    except (ValueError, RecursionError):
        raise _refuse("has a number that is not a finite number", value, RESULT, field) from None


def _refuse(problem: str, value: object, place: Place, field: str) -> InvalidPayload:
    """The refusal of a value with a known problem, with its path if that is found soon."""
    check_json(value, place, field, thorough=True, most=_MOST_SCANNED)
    return InvalidPayload(field, problem)


def read(work: Callable[[Any], Any], given: object, field: str) -> Any:
    """The result of `work(given)`; any error becomes an InvalidInput that names the path."""
    try:
        return work(given)
    except InvalidInput:
        raise
    except Exception as error:  # noqa: BLE001  validators, properties and __post_init__ are the author's code
        raise _refusal(error, field) from _original(error)


def _explain(error: Exception, value: object, place: Place, field: str) -> InvalidInput:
    """The refusal for a failed encoding; `check_json` finds a more exact path than the encoder."""
    try:
        read(lambda root: check_json(root, place, field, thorough=True, most=_MOST_SCANNED), value, field)
    except InvalidInput as refusal:
        return refusal
    if isinstance(error, msgspec.ValidationError):
        return _refusal(error, field)
    if isinstance(error, UnicodeEncodeError):
        return InvalidPayload(field, "has a lone surrogate, which is not text")
    if isinstance(error, (RecursionError, OverflowError)):
        return InvalidPayload(field, f"too deep or too large to be stored: {error}")
    return InvalidState(field, f"cannot be encoded: {type(error).__name__}: {error}")


def _refusal(error: Exception, field: str) -> InvalidState:
    """msgspec's error in Stepwell's form: `state.a.b: expected int, got str`."""
    if not isinstance(error, msgspec.ValidationError):
        return InvalidState(field, f"cannot be read: {type(error).__name__}: {error}")
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
    """The author's error, unwrapped from msgspec's and Stepwell's."""
    while isinstance(error, (msgspec.ValidationError, _ModelRefused)) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _type_name(value: object) -> str:
    return type(value).__qualname__
