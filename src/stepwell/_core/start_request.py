"""One start, validated: what `start` and `start_many` pass to the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec.structs import replace

from stepwell._core.limits.requirement import LimitRequirement
from stepwell._core.registry import Definition, Registry
from stepwell._core.validation import (
    check_at,
    check_concurrency_key,
    check_delay,
    check_key,
    check_priority,
    check_queue,
    check_tenant,
)
from stepwell.errors import InvalidInput
from stepwell.job import Arguments
from stepwell.machine import step_name
from stepwell.outcomes import Entry

OPTIONS = (
    "key", "key_scope", "queue", "priority", "delay", "at", "step", "concurrency_key", "concurrency_limit",
    "rate_limit", "weight", "tenant", "version",
)  # fmt: skip
LIMIT_OPTIONS = frozenset({"concurrency_limit", "rate_limit", "weight"})
SCOPES = ("live", "forever")


class NewInstance(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A validated start; its state is JSON text."""

    machine: str
    version: int
    step: str
    queue: str
    priority: int
    due: timedelta | datetime | None  # a delay, or an instant; None: now
    tenant: str
    concurrency_key: str | None
    state: str
    key: str | None = None
    key_scope: str | None = None
    needs: LimitRequirement | None = None


def admit(
    registry: Registry, machine: object, state: Any, options: Mapping[str, Any], *, tenant: str, max_payload: int
) -> NewInstance:
    """Validate one start; InvalidInput names the field."""
    definition = registry.resolve(machine, options.get("version"))
    for name in options:
        if name not in OPTIONS:
            raise InvalidInput(name, f"is not an option of a start (known: {', '.join(OPTIONS)})")
    delay, at = options.get("delay"), options.get("at")
    if delay is not None and at is not None:
        raise InvalidInput("delay", "both delay and at are given; give one of them")
    text = _text_of(definition, state, max_payload)
    queue, given_tenant, concurrency_key = options.get("queue"), options.get("tenant"), options.get("concurrency_key")
    step = definition.initial if options.get("step") is None else _step_of(definition, options["step"])
    declared = definition.needs.get(step)
    has_limits = declared is not None or not LIMIT_OPTIONS.isdisjoint(options)
    entry = NewInstance(
        machine=definition.name,
        version=definition.version,
        step=step,
        queue=definition.queue if queue is None else check_queue(queue),
        priority=check_priority(options["priority"]) if "priority" in options else 0,
        due=check_delay("delay", delay) if delay is not None else None if at is None else check_at("at", at),
        tenant=tenant if given_tenant is None else check_tenant(given_tenant),
        concurrency_key=None if concurrency_key is None else check_concurrency_key(concurrency_key),
        state=text,
        needs=registry.limits.of_start(declared, options) if has_limits else None,
    )
    key, scope = options.get("key"), options.get("key_scope", "live")
    return entry if key is None and scope == "live" else replace(entry, **_identity(key, scope))


def _text_of(definition: Definition, state: Any, max_payload: int) -> str:
    if definition.pipeline is not None or isinstance(state, Arguments):
        state = state_of(definition, state)
    return definition.state.admit(state, max_payload)


def _identity(key: object, scope: object) -> dict[str, str | None]:
    if scope is not None and scope not in SCOPES:
        raise InvalidInput("key_scope", f"{scope!r} is not allowed; it is \"live\", \"forever\" or None")
    if key is None:
        return {}
    checked = check_key("key", key)
    if scope is None:  # neither unique nor an address: the schema wants no key in this row
        return {}
    return {"key": checked, "key_scope": str(scope)}


def admit_many(
    registry: Registry, entries: object, *, tenant: str, max_payload: int, field: str = "entries"
) -> list[NewInstance]:
    """Validate a batch: `Checkout.child(state, …)`, `(machine, state)` or a machine alone; errors name the position."""
    return list(admit_each(registry, entries, tenant=tenant, max_payload=max_payload, field=field))


def admit_each(
    registry: Registry, entries: object, *, tenant: str, max_payload: int, field: str = "entries"
) -> Iterator[NewInstance]:
    """The same, entry by entry."""
    if not isinstance(entries, Iterable) or isinstance(entries, str | Mapping):
        raise InvalidInput(field, f"expected a list, got {type(entries).__name__}")
    plain: dict[int, tuple[Any, Definition, NewInstance]] = {}  # the first entry without options, by machine
    for position, entry in enumerate(entries):
        machine, state, options = _parts(field, position, entry)
        try:
            if options or id(machine) not in plain:
                new = admit(registry, machine, state, options, tenant=tenant, max_payload=max_payload)
                if not options:
                    plain[id(machine)] = machine, registry.resolve(machine), new
            else:
                _, definition, like = plain[id(machine)]
                new = replace(like, state=_text_of(definition, state, max_payload))
        except InvalidInput as error:
            error.add_note(f"in {field}[{position}]")
            raise
        yield new


def are_keyless(entries: Iterable[object]) -> bool:
    """Whether no entry of a batch has a key; entries are not validated yet."""
    return not any(isinstance(entry, Entry) and entry.options and "key" in entry.options for entry in entries)


def _parts(field: str, position: int, entry: object) -> tuple[Any, Any, Mapping[str, Any]]:
    match entry:
        case Entry():
            return entry.machine, entry.state, entry.options
        case (machine, state):
            return machine, state, {}
        case tuple() | list() | None:
            raise InvalidInput(f"{field}[{position}]", "expected Machine.child(state, …) or (machine, state)")
        case _:
            return entry, None, {}


def state_of(definition: Definition, state: Any) -> Any:
    """The given state, or one made from what was given: a job's arguments, a pipeline's input."""
    if not isinstance(state, Arguments):
        made = getattr(definition.owner.object, "_state_from", None)
        return state if made is None else made(state)
    if state.job is not definition.owner.object:
        raise InvalidInput("args", f"these are arguments of job {state.job.name!r}, not of {definition.name!r}")
    return state.values


def _step_of(definition: Definition, step: Any) -> str:
    name = step_name(step)
    if name is None:
        raise InvalidInput("step", f"{step!r} is not a step; name one as Checkout.ship or \"ship\"")
    return definition.step(name).name
