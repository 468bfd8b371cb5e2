"""The settings: names, defaults and ranges; read from keywords and the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Final, Literal

from stepwell.errors import InvalidDatabaseURL, SettingError

MAX_QUEUE_SLOTS = 10_000
MAX_PAYLOAD_CEILING = 256 * 1024 * 1024  # jsonb holds at most 256 MB
MAX_NAME = 200
SESSIONS = ("asyncpg", "sqlalchemy")
FAIR_BY = ("tenant",)
SCHEMA = "stepwell"
LONGEST_SCHEMA = 28  # characters: names of connections, channels and roles begin with it, and have 63 at most
DIGITS = re.compile(r"[0-9]{1,9}")  # of a whole number in user input; int() refuses thousands of digits

# Words that Postgres does not accept as a schema's name without quotes (pg_get_keywords, of all versions so far).
_RESERVED = """
    all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation
    column concurrently constraint create cross current_catalog current_date current_role current_schema current_time
    current_timestamp current_user default deferrable desc distinct do else end except false fetch for foreign freeze
    from full grant group having ilike in initially inner intersect into is isnull join lateral leading left like limit
    localtime localtimestamp natural not notnull null offset on only or order outer overlaps placing primary references
    returning right select session_user similar some symmetric system_user table tablesample then to trailing true union
    unique user using variadic verbose when where window with
"""
RESERVED: Final = frozenset(_RESERVED.split())
_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]*")

_YEAR = timedelta(days=365)
_TICK = timedelta(milliseconds=10)
DURATIONS: Final = {
    "lease": (3 * _TICK, _YEAR),
    "heartbeat": (_TICK, _YEAR),
    "poll": (_TICK, _YEAR),
    "max_poll": (_TICK, _YEAR),
    "reap": (_TICK, _YEAR),
    "prune": (_TICK, _YEAR),
    "drain_timeout": (timedelta(0), _YEAR),
    "call_timeout": (_TICK, _YEAR),
    "retention": (timedelta(0), 100 * _YEAR),
}
NUMBERS: Final = {
    "prefetch": (0, MAX_QUEUE_SLOTS),
    "min_demand": (1, MAX_QUEUE_SLOTS),
    "run_ahead": (0, 1_000),
    "max_crashes": (1, 1_000_000),
    "large_payload": (0, MAX_PAYLOAD_CEILING),
    "max_payload": (1024, MAX_PAYLOAD_CEILING),
    "transactional_pool": (1, 1_000),
}


class _Origin:
    """Remembers which settings were given: the others are derived from them."""

    __slots__ = ("_given",)
    _given: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(_Origin):
    """Every setting with its default. `STEPWELL_LEASE=90` in the environment is seconds; keywords are timedeltas."""

    queues: Mapping[str, int] = field(default_factory=lambda: {"default": 50})
    fair_by: Mapping[str, str] = field(default_factory=dict)
    lease: timedelta = timedelta(seconds=60)
    heartbeat: timedelta = timedelta(seconds=20)
    poll: timedelta = timedelta(seconds=1)
    max_poll: timedelta = timedelta(seconds=5)
    prefetch: int = 0
    min_demand: int = 1
    run_ahead: int = 16
    drain_timeout: timedelta = timedelta(seconds=5)
    reap: timedelta = timedelta(seconds=30)
    retention: timedelta | Literal[False] = timedelta(days=1)
    prune: timedelta = timedelta(seconds=60)
    max_crashes: int = 10
    large_payload: int = 128 * 1024
    max_payload: int = 1024 * 1024
    transactional_pool: int = 10
    transactional_session: Literal["asyncpg", "sqlalchemy"] = "asyncpg"
    listener_dsn: str | None = None
    call_timeout: timedelta = timedelta(seconds=30)
    tenant: str = ""
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        object.__setattr__(self, "_given", frozenset())
        _check_queues(self.queues)
        _check_fair_by(self.fair_by)
        for name, (least, most) in DURATIONS.items():
            if name != "retention" or self.retention is not False:
                _check_duration(name, getattr(self, name), least, most)
        for name, (smallest, largest) in NUMBERS.items():
            _check_whole(name, getattr(self, name), smallest, largest)
        if self.transactional_session not in SESSIONS:
            raise SettingError("transactional_session", f"expected one of {', '.join(SESSIONS)}, "
                               f"got {self.transactional_session!r}")
        _check_text("tenant", self.tenant)
        check_schema(self.schema)
        if self.listener_dsn is not None:
            _check_listener(self.listener_dsn)
        if self.heartbeat > self.lease / 3:
            raise SettingError("heartbeat", f"{self.heartbeat} is longer than a third of the lease ({self.lease}); "
                               "two missed beats must not lose it")
        if self.max_poll < self.poll:
            raise SettingError("max_poll", f"{self.max_poll} is shorter than poll ({self.poll})")

    def with_changes(self, changes: Mapping[str, Any]) -> Settings:
        """A copy with some settings replaced, and those that were never given derived again.

        An unknown name is refused with the near miss.
        """
        known = [one.name for one in fields(self)]
        for name in changes:
            if name not in known:
                raise SettingError.unknown(name, known)
        given = {**{name: getattr(self, name) for name in self._given}, **changes}
        changed = Settings(**{**_derived(given), **given})
        object.__setattr__(changed, "_given", frozenset(given))
        return changed


def _derived(given: Mapping[str, Any]) -> dict[str, timedelta]:
    """Values for settings that are not given: the default, or the nearest value that fits the given ones."""
    derived = {}
    if (lease := _usable("lease", given)) is not None:
        derived["heartbeat"] = min(_default("heartbeat"), lease // 3)
        derived["reap"] = min(_default("reap"), lease // 2)
    if (poll := _usable("poll", given)) is not None:
        derived["max_poll"] = max(_default("max_poll"), poll)
    if (max_poll := _usable("max_poll", given)) is not None:
        derived["poll"] = min(_default("poll"), max_poll)
    return derived


def _default(name: str) -> timedelta:
    value = Settings.__dataclass_fields__[name].default
    assert isinstance(value, timedelta)  # noqa: S101 - called for durations only
    return value


def _usable(name: str, given: Mapping[str, Any]) -> timedelta | None:
    """A given duration; None if it is missing, or invalid and refused later by its own check."""
    least, most = DURATIONS[name]
    value = given.get(name)
    return value if isinstance(value, timedelta) and least <= value <= most else None


def load_settings(keywords: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings from the environment, overridden by keywords."""
    found: dict[str, Any] = {}
    for setting in fields(Settings):
        variable = f"STEPWELL_{setting.name.upper()}"
        if variable in environ:
            found[setting.name] = _parse(setting.name, environ[variable])
    return Settings().with_changes({**found, **keywords})


def _parse(name: str, text: str) -> object:
    default = Settings.__dataclass_fields__[name].default
    try:
        match default:
            case timedelta() if text.lower() == "false" and name == "retention":
                return False
            case timedelta():
                return timedelta(seconds=float(text))
            case int():
                return int(text)
            case str() | None:
                return text
            case _ if name == "fair_by":
                return parse_fair_by(text.split(","))
            case _:
                return parse_queues(text.split(","))
    except (ValueError, OverflowError) as error:
        raise SettingError(name, f"STEPWELL_{name.upper()}={text!r} cannot be parsed: {error}") from error


def parse_queues(entries: list[str]) -> dict[str, int]:
    """Queues from `name=slots` texts, as on the command line."""
    queues: dict[str, int] = {}
    for entry in entries:
        name, _, slots = entry.strip().partition("=")
        if not DIGITS.fullmatch(slots):
            raise SettingError("queues", f"{entry!r:.100} is not of the form name=slots, for example default=20")
        if name in queues:
            raise SettingError("queues", f"the queue {name!r} is given twice")
        queues[name] = int(slots)
    return queues


def parse_fair_by(entries: list[str]) -> dict[str, str]:
    """How queues are shared fairly, from `name=tenant` texts, as on the command line; empty texts are skipped."""
    fair_by: dict[str, str] = {}
    for entry in filter(None, entries):
        name, _, by = entry.strip().partition("=")
        if not by:
            raise SettingError("fair_by", f"{entry!r} is not of the form name=tenant, for example default=tenant")
        if name in fair_by:
            raise SettingError("fair_by", f"the queue {name!r} is given twice")
        fair_by[name] = by
    return fair_by


def check_name(name: str, what: str) -> str | None:
    """The problem of a machine's, step's or queue's name; None if it is valid."""
    if not name:
        return f"{what} is empty"
    if len(name) > MAX_NAME:
        return f"{what} has {len(name)} characters, {MAX_NAME} are allowed"
    if not name.isprintable():
        return f"{what} {name!r} has a character that does not print"
    return None


def _check_queues(queues: object) -> None:
    if not isinstance(queues, Mapping):
        raise SettingError("queues", f"expected a mapping of queue to slots, got {type(queues).__name__}")
    if not queues:
        raise SettingError("queues", "names no queue, so a worker would run nothing; leave it out, or name one")
    for name, slots in queues.items():
        if not isinstance(name, str):
            raise SettingError("queues", f"the queue {name!r} is not a string")
        if problem := check_name(name, "the queue's name"):
            raise SettingError("queues", problem)
        if "," in name or "=" in name:
            raise SettingError("queues", f"the queue's name {name!r} has a ',' or a '='")
        if not isinstance(slots, int) or isinstance(slots, bool) or not 1 <= slots <= MAX_QUEUE_SLOTS:
            raise SettingError("queues", f"{name!r} has {slots!r} slots; 1 to {MAX_QUEUE_SLOTS:,} are allowed")


def _check_fair_by(fair_by: object) -> None:
    if not isinstance(fair_by, Mapping):
        raise SettingError("fair_by", f"expected a mapping of queue to {FAIR_BY[0]!r}, got {fair_by!r}")
    for name, by in fair_by.items():
        if not isinstance(name, str):
            raise SettingError("fair_by", f"the queue {name!r} is not a string")
        if problem := check_name(name, "the queue's name"):
            raise SettingError("fair_by", problem)
        if by not in FAIR_BY:
            raise SettingError("fair_by", f"queue {name!r} cannot be shared fairly by {by!r}; only by {FAIR_BY[0]!r}")


def check_url(dsn: object) -> None:
    """Refuse anything but the URL of a Postgres, before anything connects."""
    if not isinstance(dsn, str):
        raise InvalidDatabaseURL(f"expected a string, got {dsn!r}")
    scheme, found, _ = dsn.partition("://")
    if not found:
        raise InvalidDatabaseURL("it has no scheme")
    if scheme not in {"postgresql", "postgres"}:
        raise InvalidDatabaseURL(f"the scheme {scheme!r} is not one of a Postgres")


def check_schema(name: object) -> str:
    """Check the name of a schema: it must need no quotes anywhere."""
    if not isinstance(name, str):
        raise SettingError("schema", f"expected a string, got {name!r}")
    if not _PLAIN_NAME.fullmatch(name) or len(name) > LONGEST_SCHEMA:
        raise SettingError("schema", f"{name!r:.100} is not of 1 to {LONGEST_SCHEMA} lower-case letters, digits and "
                           "'_', the first not a digit")
    if name in RESERVED:
        raise SettingError("schema", f"{name!r} is a reserved word of SQL; choose another name")
    if name.startswith("pg_") or name in ("public", "information_schema"):
        raise SettingError("schema", f"{name!r} is not for Stepwell alone; choose another name")
    if "_client" in name:
        raise SettingError("schema", f"{name!r} has '_client', which marks the roles of clients; "
                           "choose another name")
    return name


def _check_listener(dsn: object) -> None:
    _check_text("listener_dsn", dsn)
    if not dsn:
        raise SettingError("listener_dsn", "is empty; unset STEPWELL_LISTENER_DSN, or give the URL of a Postgres")
    try:
        check_url(dsn)
    except InvalidDatabaseURL as error:
        raise SettingError("listener_dsn", str(error).removeprefix("database URL: ")) from error


def _check_duration(name: str, value: object, least: timedelta, most: timedelta) -> None:
    if not isinstance(value, timedelta):
        raise SettingError(name, f"expected a timedelta, got {value!r}")
    if not least <= value <= most:
        raise SettingError(name, f"{value} is out of range ({least} to {most.days:,} days)")


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise SettingError(name, f"expected a whole number, got {value!r}")
    if not least <= value <= most:
        raise SettingError(name, f"{value} is out of range ({least:,} to {most:,})")


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise SettingError(name, f"expected a string, got {value!r}")
    if "\x00" in value or len(value) > 4 * MAX_NAME:
        raise SettingError(name, "has a NUL character or is too long")
