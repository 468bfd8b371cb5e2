"""From an Ask to the questions that are stored: checked, encoded, with the key by which the other side knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal
from uuid import uuid4

import msgspec

from stepwell._core.codec import check_size, encode_value
from stepwell._core.ranges import check_delay, check_key
from stepwell._core.replies import ReplyType, reply_type
from stepwell._core.requests import RequestType, request_type
from stepwell.errors import InvalidInput, InvalidOutcome
from stepwell.outcomes import MAX_ITEMS, Ask, AskEach, OnTimeout

MAX_WINDOW = 100_000
MOST_ITEMS = 1_000_000  # that max_items may be


class Common(msgspec.Struct, frozen=True, kw_only=True):
    """What all questions of a unit have in common."""

    step: str  # that asks
    transport: str
    sends: bool
    type: ReplyType
    timeout: timedelta | None
    on_timeout: OnTimeout
    requires_token: bool
    assignee: str | None
    group: str | None
    idempotency: tuple[str, ...]
    is_shared: bool
    window: int | None = None
    max_items: int = MAX_ITEMS  # of a list, asked or answered; 0: any number
    item_step: str | None = None  # where single answers go on by themselves
    request: RequestType | None = None  # None: anything may be asked


class Question(msgspec.Struct, frozen=True):
    """One question of a unit: its public id, the request as JSON text, and the fields of its key."""

    id: str
    request: str
    fields: str


class NewUnit(msgspec.Struct, frozen=True):
    """What an ask opens with its commit; `question` is None if the unit was filled chunk by chunk."""

    common: Common
    question: Question | None

    @property
    def shape(self) -> Literal["one", "each"]:
        return "each" if self.question is None else "one"


def common(outcome: Ask | AskEach, step: str, *, sends: bool, has_keys: bool) -> Common:
    """Check what an Ask says about all its questions."""
    timeout = None if outcome.timeout is None else check_delay("timeout", outcome.timeout)
    if timeout is not None and not timeout:
        raise InvalidOutcome("timeout", "a timeout of zero waits for no answer; leave it out, or give it some time")
    if outcome.on_timeout not in ("wake", "fail"):
        raise InvalidOutcome("on_timeout", f"expected 'wake' or 'fail', got {outcome.on_timeout!r}")
    if outcome.token and not has_keys:
        raise InvalidOutcome("token", "this engine has no keys to sign it with; pass them to Engine(token_keys={…})")
    fields = outcome.idempotency
    if isinstance(fields, str) or not all(isinstance(field, str) for field in fields):
        raise InvalidOutcome("idempotency", f"expected names of fields, as in (\"order\",), got {fields!r}")
    return Common(
        step=step,
        transport=outcome.transport,
        sends=sends,
        type=reply_type(outcome.reply),
        timeout=timeout,
        on_timeout=outcome.on_timeout,
        requires_token=bool(outcome.token),
        assignee=None if outcome.assignee is None else check_key("assignee", outcome.assignee),
        group=None if outcome.group is None else check_key("group", outcome.group),
        idempotency=tuple(fields),
        is_shared=bool(outcome.shared),
        window=_window(outcome.window) if isinstance(outcome, AskEach) else None,
        max_items=_max_items(outcome.max_items) if isinstance(outcome, Ask) else MAX_ITEMS,
        request=request_type(outcome.request_type),
    )


def question(request: Any, common: Common, max_payload: int, field: str = "request") -> Question:
    """One question, encoded."""
    most = common.max_items
    if most and isinstance(request, Sequence) and not isinstance(request, str | bytes) and len(request) > most:
        raise InvalidOutcome(field, f"{len(request):,} items are more than one question may be about ({most:,}); "
                             "ask about each with Ask.each, or raise max_items")
    text = encode_value(request, field) if common.request is None else common.request.encode(request, field)
    check_size(text, field, max_payload)
    return Question(str(uuid4()), text, _key(text, common.idempotency) if common.idempotency else "")


def _key(text: str, fields: Sequence[str]) -> str:
    """The named fields with their values; a request without them is an error, not a key that all such share."""
    request = msgspec.json.decode(text)
    if not isinstance(request, Mapping):
        raise InvalidOutcome("idempotency", "names fields, but the request has none: it is a "
                             f"{type(request).__name__}; leave idempotency out")
    if missing := [field for field in fields if request.get(field) is None]:
        raise InvalidOutcome("idempotency", f"the request has no field {missing[0]!r}, or nothing in it")
    return msgspec.json.encode({field: request[field] for field in fields}, order="sorted").decode()


def _max_items(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number <= MOST_ITEMS:
        raise InvalidInput("max_items", f"expected a whole number from 0 to {MOST_ITEMS:,}, got {number!r}")
    return number


def _window(window: object) -> int:
    if not isinstance(window, int) or isinstance(window, bool) or not 1 <= window <= MAX_WINDOW:
        raise InvalidInput("window", f"expected a whole number from 1 to {MAX_WINDOW:,}, got {window!r}")
    return window
