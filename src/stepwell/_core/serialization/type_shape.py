"""Reads a type once and keeps, for each place in it, which values are allowed there.

A place in a class or a typed container is TYPED: JSON decodes a datetime to a datetime. A place typed `Any`, or not
typed, is JSON: a datetime would be decoded as a string there, so it is refused.
"""

from __future__ import annotations

import dataclasses
import sys
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, get_origin

import msgspec
from msgspec import inspect

from stepwell.errors import DefinitionError

if TYPE_CHECKING:
    from collections.abc import Mapping

_INEXACT = (
    inspect.DictType, inspect.TypedDictType, inspect.FloatType, inspect.DecimalType, inspect.AnyType,
    inspect.CustomType, inspect.RawType,
)  # fmt: skip
ALLOWED = "a dataclass, a msgspec.Struct, a TypedDict, a pydantic model or a dict"


class Rule(Enum):
    JSON = "only what JSON has"
    RESULT = "what JSON has, and typed objects"
    TYPED = "what the encoder has"
    MODEL = "what the model's own serializers make of it"


@dataclasses.dataclass(slots=True, eq=False)
class Place:
    """One place in a type: the rule for its leaves, and the places below it."""

    rule: Rule
    items: Place | None = None
    positions: tuple[Place, ...] = ()
    keys: Place | None = None
    values: Place | None = None
    records: dict[type, Record] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(slots=True, eq=False)
class Record:
    """A class with named fields: by attribute, as an object has them, and by name, as a mapping has them."""

    attributes: dict[str, Place] = dataclasses.field(default_factory=dict)
    names: dict[str, Place] = dataclasses.field(default_factory=dict)
    tag_field: str | None = None
    tag: str | int | None = None
    is_open: bool = False
    forbids_unknown: bool = False
    defaults: dict[str, object] = dataclasses.field(default_factory=dict)

    def complete(self, value: object) -> bool:
        """Set the defaults that msgspec leaves on a dataclass's class, where its encoder does not look; returns whether
        some may have been missing."""
        own = vars(value)
        if len(own) >= len(self.attributes):
            return False
        for name, default in self.defaults.items():
            own.setdefault(name, default)
        return True


def _uniform(rule: Rule) -> Place:
    place = Place(rule)
    place.items = place.keys = place.values = place
    return place


JSON = _uniform(Rule.JSON)
RESULT = _uniform(Rule.RESULT)
TYPED = _uniform(Rule.TYPED)
MODEL = _uniform(Rule.MODEL)


def is_model(kind: object) -> bool:
    """Whether `kind` is a pydantic model; pydantic is never imported here."""
    main = sys.modules.get("pydantic.main")
    return main is not None and isinstance(kind, type) and issubclass(kind, main.BaseModel)


class Survey:
    """The places of one type. `risky` means that its values need a walk by `check_json` after each encoding.

    A type is not risky if its text shows what the encoder would change or let pass: NaN becomes `null`, NUL an escape,
    a huge integer a run of digits, and a wrong type does not decode again.
    It is `exact` if text and jsonb decode to equal values: it has no mapping, as jsonb changes the order of keys, and
    only whole numbers. (A decimal is written as a string, but a float that was assigned in its place is a number.)
    It `hashes` if decoding puts values into sets, or uses keys other than strings: an attacker can find whole numbers
    with equal hashes, and then each insertion takes as long as all before it.
    """

    def __init__(self, kind: Any) -> None:
        self.risky = False
        self.exact = True
        self.hashes = False
        self._owner = getattr(kind, "__qualname__", str(kind))
        self._records: dict[int, Record] = {}
        self._unfinished: set[int] = set()
        try:
            self.node = inspect.type_info(kind)
        except (TypeError, NameError, AttributeError) as error:
            raise DefinitionError(f"{self._owner} cannot be read as a type: {error}") from error
        self.place = self._place(self.node)

    def _place(self, node: inspect.Type) -> Place:
        place = Place(Rule.TYPED)
        self._fill(place, node)
        return place

    def _fill(self, place: Place, node: inspect.Type) -> None:  # noqa: C901, PLR0912  one case per kind of type
        self.exact = self.exact and not isinstance(node, _INEXACT)
        match node:
            case inspect.Metadata(type=inner):
                self._fill(place, inner)
            case inspect.UnionType(types=types):
                for one in types:
                    self._fill(place, one)
            case inspect.DictType(key_type=key, value_type=value):
                self.hashes = self.hashes or not isinstance(key, inspect.StrType)
                place.keys, place.values = self._place(key), self._place(value)
            case inspect.TupleType(item_types=types):
                place.positions = tuple(self._place(one) for one in types)
            case inspect.NamedTupleType(fields=fields):
                place.positions = tuple(self._place(one.type) for one in fields)
            case inspect.CollectionType(item_type=item):
                self.hashes = self.hashes or isinstance(node, inspect.SetType | inspect.FrozenSetType)
                place.items = self._place(item)
            case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType():
                place.records[get_origin(node.cls) or node.cls] = self._record(node)
            case inspect.CustomType(cls=cls) if is_model(cls):
                self.risky = self.hashes = True  # it may have sets
                place.records[cls] = _model_record(cls)
            case inspect.CustomType(cls=cls) if cls is not object:
                raise DefinitionError(f"{self._owner} holds {cls.__qualname__}, which cannot be stored; "
                                      f"use {ALLOWED}, or a type JSON has")
            case inspect.AnyType() | inspect.CustomType():
                self.risky = True
                place.rule, place.items, place.keys, place.values = Rule.JSON, JSON, JSON, JSON
            case inspect.DateTimeType() | inspect.TimeType() | inspect.DecimalType() | inspect.RawType():
                self.risky = True
            case _:
                pass

    def _record(self, node: inspect.StructType | inspect.DataclassType | inspect.TypedDictType) -> Record:
        if (known := self._records.get(id(node))) is not None:
            # A type that contains itself has no greatest depth.
            self.risky = self.risky or id(node) in self._unfinished
            return known
        record = self._records[id(node)] = Record()
        if isinstance(node, inspect.StructType):
            record.tag_field, record.tag = node.tag_field, node.tag
            record.forbids_unknown = node.forbid_unknown_fields
        if isinstance(node, inspect.DataclassType):
            record.defaults = _defaults_on_class(get_origin(node.cls) or node.cls)
        # A TypedDict does not refuse the assignment of a misspelt key; `check_json` does.
        self.risky = self.risky or isinstance(node, inspect.TypedDictType)
        self._unfinished.add(id(node))
        for one in node.fields:
            place = self._place(one.type)
            record.attributes[one.name] = record.names[one.encode_name] = place
        self._unfinished.discard(id(node))
        return record


def _defaults_on_class(cls: Any) -> dict[str, object]:
    """Defaults that are attributes of the class. With slots there are none: the attribute is a descriptor."""
    return {one.name: one.default for one in getattr(cls, "__dataclass_fields__", {}).values()
            if one.default is not dataclasses.MISSING and getattr(cls, one.name, None) is one.default}


def _model_record(cls: Any) -> Record:
    extra = cls.model_config.get("extra")
    record = Record(is_open=extra == "allow", forbids_unknown=extra == "forbid")
    for name, one in cls.model_fields.items():
        if one.exclude is not True:
            record.attributes[name] = MODEL
        for alias in (name, one.alias, *_aliases(one.validation_alias)):
            if isinstance(alias, str):
                record.names[alias] = MODEL
    return record


def _aliases(alias: Any) -> list[Any]:
    """The top-level names of a string, an AliasPath (`path`) or AliasChoices (`choices`)."""
    if choices := getattr(alias, "choices", None):
        return [name for choice in choices for name in _aliases(choice)]
    return [alias.path[0]] if getattr(alias, "path", None) else [alias]


@cache
def record_of(kind: type) -> Record | None:
    """The record of a class that was found in a value; None if it is not a class with fields."""
    if is_model(kind):
        return _model_record(kind)
    if issubclass(kind, msgspec.Struct):
        names = kind.__struct_fields__
    elif dataclasses.is_dataclass(kind):
        names = tuple(field.name for field in dataclasses.fields(kind))
    else:
        return None
    try:
        return Survey(kind).place.records[kind]
    except DefinitionError:
        # Nothing is decoded into this class, so an unreadable annotation does not matter.
        return Record(attributes=dict.fromkeys(names, TYPED))


def record_for(mapping: Mapping[Any, object], place: Place) -> Record | None:
    """The record for a mapping: the only one, or the one that its tag names."""
    records = list(place.records.values())
    if len(records) == 1:
        return records[0]
    return next((one for one in records if one.tag_field and mapping.get(one.tag_field) == one.tag), None)
