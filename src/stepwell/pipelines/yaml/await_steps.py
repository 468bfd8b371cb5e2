"""Await steps of a pipeline's file: every key is checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from stepwell._core.await_unit import MAX_WINDOW, MOST_ITEMS
from stepwell._core.serialization.reply_type import reply_type
from stepwell._core.serialization.type_ref import shown
from stepwell.errors import InvalidOutcome
from stepwell.pipelines.decorators import check_projector
from stepwell.pipelines.model import AwaitStep, Cardinality
from stepwell.pipelines.yaml.ignored_keys import AWAIT
from stepwell.pipelines.yaml.imports import Importer
from stepwell.pipelines.yaml.keys import near_miss
from stepwell.pipelines.yaml.reader import Section
from stepwell.pipelines.yaml.transports import TransportSpec, read_transport

STRATEGIES: Final = ("interactionId", "signedResumeToken")
CARDINALITIES: Final = (*(one.value for one in Cardinality), "EXPANSION", "REDUCTION")
_RUNS_NOTHING: Final = "an await step runs no code of its own; remove it"
_CARDINALITY_DECIDES: Final = "cardinality alone decides how many are asked; remove it"


def read_await_step(section: Section, name: str, pipeline: str, types: Importer) -> tuple[AwaitStep,
                                                                                          TransportSpec | None] | None:
    """One await step, and its transport if the file describes it; None if a required key is missing."""
    section.pass_over(AWAIT)
    for key in ("service", "operator", "delegate", "remote", "function", "mapper", "inboundMapper",
                "outboundMapper", "externalMapper", "retries", "backoff", "onError"):  # fmt: skip
        section.refuse(key, _RUNS_NOTHING)
    cardinality = Cardinality(section.choice("cardinality", CARDINALITIES) or Cardinality.ONE_TO_ONE)
    taken = read_type(section, "input", types, other="inputTypeName")
    given = read_type(section, "output", types, other="outputTypeName")
    if (accepts := read_types(section, "accepts", types)) and taken not in accepts:
        section.problem(f"an await step asks about all items it gets: {shown(taken)}; reject others before it",
                        "accepts")
    timeout = section.duration("timeout", required=True)
    idempotency = _read_idempotency(section, taken, cardinality)
    await_step = AwaitStep(
        name=name, over="", output=given, input=taken, cardinality=cardinality, timeout=timeout, idempotency=idempotency
    )
    asked = section.section("await", required=True)
    section.finish()
    return None if asked is None else _read_await(asked, await_step, pipeline, types)


def _read_await(
    section: Section, await_step: AwaitStep, pipeline: str, types: Importer
) -> tuple[AwaitStep, TransportSpec | None] | None:
    for key in ("dispatch", "scope"):
        section.refuse(key, _CARDINALITY_DECIDES)
    changes: dict[str, Any] = {
        "window": section.whole("window", least=1, most=MAX_WINDOW),
        "max_items": section.whole("maxItems", least=0, most=MOST_ITEMS),
        "assignee": section.text("assignee"),
        "group": section.text("group"),
        "shared": section.flag("shared"),
        "token": _read_strategy(section),
    }
    changes |= _read_completion(section, types)
    transport = section.section("transport", required=True)
    section.finish()
    if transport is None:
        return None
    over, spec = read_transport(transport, f"{pipeline}.{await_step.name}")
    known = {name: value for name, value in changes.items() if value is not None}
    return msgspec.structs.replace(await_step, over=over or "", **known), spec


def read_type(section: Section, key: str, types: Importer, *, other: str | None = None, required: bool = True) -> Any:
    """A type that can be read from JSON; Any if there is none, or no valid one."""
    text = section.text(key, required=required and (other is None or not section.has(other)))
    if other is not None and (named := section.text(other)) is not None:
        if text is not None and _last(text) != _last(named):
            section.problem(f"names {named}, but {key} names {_last(text)}; they are two names of one type", other)
        if text is None or ":" not in text:  # a class of the other framework, and its name
            text, key = named, other
    if text is None:
        return Any
    try:
        kind = types.find_type(text)
        reply_type(kind)
    except ValueError as error:  # an InvalidOutcome is a ValueError
        section.problem(error.problem if isinstance(error, InvalidOutcome) else str(error), key)
        return Any
    return kind


def _last(text: str) -> str:
    """The name of a type without its package or module."""
    return text.replace(":", ".").rpartition(".")[2]


def read_types(section: Section, key: str, types: Importer) -> list[Any]:
    """A list of types."""
    found = []
    for text in section.texts(key) or ():
        try:
            found.append(types.find_type(text))
        except ValueError as error:
            section.problem(str(error), key)
    return found


def _read_strategy(section: Section) -> bool | None:
    correlation = section.section("correlation")
    if correlation is None:
        if not section.has("correlation"):
            section.problem(f"is missing; {' or '.join(STRATEGIES)}", "correlation.strategy")
        return None
    strategy = correlation.choice("strategy", STRATEGIES, required=True)
    correlation.finish()
    return None if strategy is None else strategy == "signedResumeToken"


def _read_idempotency(section: Section, taken: Any, cardinality: Cardinality) -> tuple[str, ...]:
    fields, key = section.texts("idempotencyKeyFields"), "idempotencyKeyFields"
    if section.has("idempotency"):
        if section.has(key):
            section.problem("idempotencyKeyFields is given too; remove one of them", "idempotency")
        inner = section.section("idempotency")
        if inner is not None and not inner.has("fields"):
            inner.problem("is missing", "fields")
        fields, key = None if inner is None else inner.texts("fields"), "idempotency"
        if inner is not None:
            inner.finish()
    if fields is None:
        return ()
    if cardinality.is_aggregate:
        section.problem(f"names fields of one request, but {cardinality} asks about all of them at once", key)
    _check_fields(section, key, fields, taken)
    return tuple(fields)


def _check_fields(section: Section, key: str, fields: Sequence[str], taken: Any) -> None:
    known = _fields(taken)
    for field in fields if known is not None else ():
        if field not in (known or ()):
            section.problem(f"{taken.__name__} has no field {field!r}{near_miss(field, known or [])}", key)
    if len(set(fields)) < len(fields):
        section.problem("names a field twice", key)


def _fields(kind: Any) -> list[str] | None:
    """The names of a type's fields in JSON; None if they cannot be known."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return [field.encode_name for field in msgspec.structs.fields(kind)]
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return None


def _read_completion(section: Section, types: Importer) -> dict[str, Any]:
    """The type of the completion, and the function that makes the output of the request and of that."""
    completion = section.section("completion")
    if completion is None:
        return {}
    kind, projector = read_type(completion, "type", types), None
    if (text := completion.text("projector", required=True)) is not None:
        try:
            projector = types.find_function(text)
        except ValueError as error:
            completion.problem(str(error), "projector")
        else:
            if problem := check_projector(projector):
                completion.problem(problem, "projector")
    completion.finish()
    return {"completion": kind, "projector": projector}
