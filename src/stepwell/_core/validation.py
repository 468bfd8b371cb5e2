"""Checks of user input: priorities, delays, times, names. Each check returns the value or raises InvalidInput."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from uuid import UUID

from stepwell.config import MAX_NAME, check_name
from stepwell.errors import InvalidInput

MAX_DELAY = timedelta(days=36_500)
MAX_PRIORITY = 32_767
MIN_PRIORITY = -32_768
EARLIEST = datetime(1, 1, 1, tzinfo=UTC)
TOO_LATE = datetime(9_001, 1, 1, tzinfo=UTC)
NO_ID = 0  # an id that no instance has
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # as Stepwell writes them


def check_delay(field: str, delay: object) -> timedelta:
    if not isinstance(delay, timedelta):
        raise InvalidInput(field, f"expected a timedelta, got {delay!r}")
    if not timedelta(0) <= delay <= MAX_DELAY:
        raise InvalidInput(field, f"{delay} is out of range (0 to {MAX_DELAY.days:,} days)")
    return delay


def check_at(field: str, at: object) -> datetime:
    if not isinstance(at, datetime):
        raise InvalidInput(field, f"expected a datetime, got {at!r}")
    if at.tzinfo is None or at.utcoffset() is None:
        raise InvalidInput(field, f"{at} is naive; give it a time zone, for example datetime.now(timezone.utc)")
    if not EARLIEST <= at < TOO_LATE:
        raise InvalidInput(field, f"{at} is out of range (the years 1 to 9000, in UTC)")
    return at


def check_priority(priority: object) -> int:
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise InvalidInput("priority", f"expected a whole number, got {priority!r}")
    if not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise InvalidInput("priority", f"{priority} is out of range ({MIN_PRIORITY} to {MAX_PRIORITY}; lower first)")
    return priority


def check_queue(queue: object) -> str:
    if not isinstance(queue, str):
        raise InvalidInput("queue", f"expected a string, got {queue!r}")
    if problem := check_name(queue, "the queue's name"):
        raise InvalidInput("queue", problem)
    return queue


def check_concurrency_key(key: object) -> str | None:
    return None if key is None else check_key("concurrency_key", key)


def check_key(field: str, key: object) -> str:
    if not isinstance(key, str):
        raise InvalidInput(field, f"expected a string, got {key!r}")
    if not key:
        raise InvalidInput(field, "is empty; leave it out instead")
    if len(key) > MAX_NAME:
        raise InvalidInput(field, f"has {len(key)} characters, {MAX_NAME} are allowed")
    return check_text(field, key)


def check_target(target: object) -> tuple[int | None, str | None]:
    """A target as an id or a key, the other None; an id beyond bigint becomes NO_ID."""
    if isinstance(target, bool) or not isinstance(target, int | str):
        raise InvalidInput("target", f"expected an id (int) or a key (str), got {target!r}")
    if isinstance(target, int):
        return (int(target) if 0 < target < 2**63 else NO_ID), None
    return None, check_key("target", target)


def check_tenant(tenant: object) -> str:
    if not isinstance(tenant, str):
        raise InvalidInput("tenant", f"expected a string, got {tenant!r}")
    if len(tenant) > MAX_NAME:
        raise InvalidInput("tenant", f"has {len(tenant)} characters, {MAX_NAME} are allowed")
    return check_text("tenant", tenant)


def tenant_of(key: str | None, tenant: object, default: str) -> str | None:
    """The tenant that a target must have: a key always has one, an id only if a tenant was given."""
    if tenant is None:
        return None if key is None else default
    return check_tenant(tenant)


def check_text(field: str, text: str) -> str:
    if "\x00" in text:
        raise InvalidInput(field, "has a NUL character, which Postgres cannot store")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidInput(field, "has a lone surrogate, which is not text") from None
    return text


def check_uuid(field: str, text: object) -> str:
    if isinstance(text, str) and _UUID.fullmatch(text):
        return text
    try:
        return str(UUID(text))  # type: ignore[arg-type]  # a value of any type is refused by name
    except (ValueError, AttributeError, TypeError):
        raise InvalidInput(field, f"expected a UUID, got {text!r:.100}") from None
