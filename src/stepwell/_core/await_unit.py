"""Turns an Ask into an await unit and interactions: checked, encoded, with their idempotency key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal
from uuid import uuid4

import msgspec

from stepwell._core.serialization.bounds import check_bounds
from stepwell._core.serialization.codec import encode_value
from stepwell._core.serialization.reply_type import ReplyType, reply_type
from stepwell._core.serialization.request_type import RequestType, request_type
from stepwell._core.validation import check_delay, check_key
from stepwell.errors import InvalidInput, InvalidOutcome
from stepwell.machine import step_name
from stepwell.outcomes import MAX_ITEMS, Ask, AskEach, OnTimeout

MAX_WINDOW = 100_000
MOST_ITEMS = 1_000_000  # largest value of max_items
SHOWN = 300  # characters of a request in an error
SHOWN_BEFORE = 60  # of these, characters before the first difference


class RequestRules(msgspec.Struct, frozen=True, kw_only=True):
    """How the requests of a unit are checked and told apart."""

    type: RequestType | None = None  # None: any request
    max_items: int = MAX_ITEMS  # of a list in the request or reply; 0: any number
    idempotency: tuple[str, ...] = ()  # the fields of the idempotency key


class EachItem(msgspec.Struct, frozen=True):
    """How a unit asks about single items."""

    window: int  # the most interactions that are open together
    step: str | None  # the first step of continuations


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """The properties that all interactions of a unit share."""

    step: str  # the step that asks; of a pipeline, its await step
    transport: str
    sends: bool
    type: ReplyType
    timeout: timedelta | None
    on_timeout: OnTimeout
    requires_token: bool
    assignee: str | None
    group: str | None
    is_shared: bool
    requests: RequestRules
    each: EachItem | None = None  # of Ask.each


class NewInteraction(msgspec.Struct, frozen=True):
    """One interaction of a unit: its public id, the request as JSON text, and the fields of its idempotency key."""

    id: str
    request: str
    fields: str


class NewAwaitUnit(msgspec.Struct, frozen=True):
    """The unit that an Ask opens with its commit; `interaction` is None if the interactions were appended in chunks."""

    common: Common
    interaction: NewInteraction | None

    @property
    def shape(self) -> Literal["one", "each"]:
        return "each" if self.interaction is None else "one"


def common(outcome: Ask | AskEach, step: str, *, sends: bool, has_keys: bool) -> Common:
    """Check what an Ask says about all its interactions."""
    timeout = None if outcome.timeout is None else check_delay("timeout", outcome.timeout)
    if timeout is not None and not timeout:
        raise InvalidOutcome("timeout", "a timeout of zero waits for no reply; leave it out, or give a longer one")
    if outcome.on_timeout not in ("wake", "fail"):
        raise InvalidOutcome("on_timeout", f"expected 'wake' or 'fail', got {outcome.on_timeout!r}")
    if outcome.token and not has_keys:
        raise InvalidOutcome("token", "this engine has no keys to sign a token; pass them to Engine(token_keys={…})")
    fields = outcome.idempotency
    if isinstance(fields, str) or not all(isinstance(field, str) for field in fields):
        raise InvalidOutcome("idempotency", f"expected names of fields, as in (\"order\",), got {fields!r}")
    return Common(
        step=step if outcome.await_step is None else outcome.await_step,
        transport=outcome.transport,
        sends=sends,
        type=reply_type(outcome.reply),
        timeout=timeout,
        on_timeout=outcome.on_timeout,
        requires_token=bool(outcome.token),
        assignee=None if outcome.assignee is None else check_key("assignee", outcome.assignee),
        group=None if outcome.group is None else check_key("group", outcome.group),
        is_shared=bool(outcome.shared),
        requests=RequestRules(
            type=request_type(outcome.request_type),
            max_items=_max_items(outcome.max_items) if isinstance(outcome, Ask) else MAX_ITEMS,
            idempotency=tuple(fields),
        ),
        each=_each_item(outcome) if isinstance(outcome, AskEach) else None,
    )


def _each_item(outcome: AskEach) -> EachItem:
    step = None if outcome.item_step is None else step_name(outcome.item_step)
    return EachItem(_window(outcome.window), step)


def new_interaction(request: Any, common: Common, max_payload: int, field: str = "request") -> NewInteraction:
    """One interaction, with its request checked and encoded."""
    rules = common.requests
    most = rules.max_items
    if most and isinstance(request, Sequence) and not isinstance(request, str | bytes) and len(request) > most:
        raise InvalidOutcome(field, f"{len(request):,} items are more than one request may have ({most:,}); "
                             f"ask about each with Ask.each, or raise max_items; asked by {common.step!r}")
    try:
        text = encode_value(request, field) if rules.type is None else rules.type.encode(request, field)
        check_bounds(text, field, max_payload)
    except InvalidInput as error:
        kind = rules.type
        asked = f"asked by {common.step!r}" if kind is None else f"{common.step!r} asks about {kind.name}"
        error.problem = f"{error.problem}; {asked}"
        error.args = (f"{error.field}: {error.problem}",)
        raise
    return NewInteraction(str(uuid4()), text, _key(text, common, field) if rules.idempotency else "")


def _key(text: str, common: Common, place: str) -> str:
    """The named fields with their values. A request without them is an error: else all such would share a key."""
    request, fields = msgspec.json.decode(text), common.requests.idempotency
    shown = "the request" if place == "request" else place
    if not isinstance(request, Mapping):
        raise InvalidOutcome("idempotency", f"{common.step!r} names fields, but {shown} has none: it is a "
                             f"{type(request).__name__}; leave idempotency out")
    if missing := [field for field in fields if request.get(field) is None]:
        raise InvalidOutcome("idempotency", f"{shown} has no field {missing[0]!r}, or nothing in it; {common.step!r} "
                             "asks by it")
    return msgspec.json.encode({field: request[field] for field in fields}, order="sorted").decode()


def apart(one: str, other: str) -> tuple[str, str]:
    """Two requests that differ, each cut to a part with the first difference."""
    first = next((place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
    begin = max(first - SHOWN_BEFORE, 0) if max(len(one), len(other)) > SHOWN else 0
    return _cut(one, begin), _cut(other, begin)


def _cut(text: str, begin: int) -> str:
    end = begin + SHOWN
    return f"{'… ' if begin else ''}{text[begin:end]}{' …' if len(text) > end else ''}"


def _max_items(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MOST_ITEMS:
        raise InvalidInput("max_items", f"expected a whole number from 0 to {MOST_ITEMS:,}, got {number!r}")
    return number


def _window(window: object) -> int:
    if not isinstance(window, int) or isinstance(window, bool) or not 1 <= window <= MAX_WINDOW:
        raise InvalidInput("window", f"expected a whole number from 1 to {MAX_WINDOW:,}, got {window!r}")
    return window
