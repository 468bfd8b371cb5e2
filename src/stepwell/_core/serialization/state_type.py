"""The types of states and of jobs' arguments: they check, encode and decode them.

    admit    in an API call: mapping or object → checked against the type, defaults filled → text
    encode   after a step:   object → text that is known to decode again
    decode   before a step:  text → object
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, Final, get_args, get_origin

import msgspec
from msgspec.inspect import CustomType, DataclassType, DictType, StructType, TypedDictType

from stepwell._core.serialization.bounds import check_bounds
from stepwell._core.serialization.codec import read, write
from stepwell._core.serialization.encoder import decoder_of, model_of_argument, to_json, type_name
from stepwell._core.serialization.json_check import check_json
from stepwell._core.serialization.jsonb import as_jsonb
from stepwell._core.serialization.type_shape import ALLOWED, Record, Survey, is_model
from stepwell.errors import DefinitionError, InvalidState

NO_DEFAULT: Final = msgspec.NODEFAULT

_PLAIN = frozenset({str, int, float, bool, type(None)})


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
            return self._written(value, None, max_payload)[0]
        if type(value) is not dict and not isinstance(value, Mapping):
            raise InvalidState(self.field, f"expected {self._name} or a mapping, got {type_name(value)}")
        if self._verifier is not None:
            value = read(lambda given: self._made(given, max_payload), value, self.field)
        return self._written(value, None, max_payload)[0]

    def _made(self, mapping: Mapping[Any, object], max_payload: int | None) -> object:
        # If it has only known fields with plain values, encoding finds all that a check would find.
        is_known = mapping.keys() <= self._record.names.keys()
        if is_known and not self._risky and _PLAIN.issuperset(map(type, mapping.values())):
            try:
                return msgspec.convert(mapping, self._kind, dec_hook=model_of_argument)
            except Exception:  # noqa: BLE001, S110  the checks below name the problem
                pass
        if max_payload is not None and (encoded := self.mark(mapping)) is not None:
            check_bounds(encoded.decode(), self.field, max_payload)
        check_json(mapping, self._place, self.field, thorough=True)
        made = msgspec.convert(mapping, self._kind, str_keys=True, dec_hook=model_of_argument)
        # The second check sees what the first could not: a naive datetime given as text, defaults to fill in.
        check_json(made, self._place, self.field, thorough=False)
        return made

    def encode(self, value: object, max_payload: int | None = None) -> str:
        """The text to store for a state."""
        return self._written(value, None, max_payload)[0]

    def _written(self, value: object, encoded: bytes | None, max_payload: int | None = None) -> tuple[str, Any]:
        """The text to store for a state, and that text decoded; `encoded`, if it is encoded already."""
        if type(value) is not self._class and not (self._is_mapping and isinstance(value, Mapping)):
            raise InvalidState(self.field, f"expected {self._name}, got {type_name(value)}")
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
            return to_json(value)
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
            return self._decoder.decode(to_json(known))


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
