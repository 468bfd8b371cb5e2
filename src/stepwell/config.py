"""The settings: what they are called, what they mean, what is allowed; from keywords and the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, Literal

from stepwell.errors import SettingError

MAX_QUEUE_SLOTS = 10_000
MAX_PAYLOAD_CEILING = 256 * 1024 * 1024  # jsonb itself ends at 256 MB
MAX_NAME = 200
SESSIONS = ("asyncpg", "sqlalchemy")
FAIR_BY = ("tenant",)
DIGITS = re.compile(r"[0-9]{1,9}")  # of a whole number that somebody wrote; of thousands int() makes none


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
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
    tenant: str = ""

    def __post_init__(self) -> None:
        _check_queues(self.queues)
        _check_fair_by(self.fair_by)
        for name in ("lease", "heartbeat", "poll", "max_poll", "reap", "prune"):
            _check_duration(name, getattr(self, name), least=timedelta(milliseconds=10))
        if self.retention is not False:
            _check_duration("retention", self.retention, least=timedelta(0), most=timedelta(days=36_500))
        _check_duration("drain_timeout", self.drain_timeout, least=timedelta(0))
        _check_whole("prefetch", self.prefetch, 0, MAX_QUEUE_SLOTS)
        _check_whole("min_demand", self.min_demand, 1, MAX_QUEUE_SLOTS)
        _check_whole("run_ahead", self.run_ahead, 0, 1_000)
        _check_whole("max_crashes", self.max_crashes, 1, 1_000_000)
        _check_whole("large_payload", self.large_payload, 0, MAX_PAYLOAD_CEILING)
        _check_whole("max_payload", self.max_payload, 1024, MAX_PAYLOAD_CEILING)
        _check_whole("transactional_pool", self.transactional_pool, 1, 1_000)
        if self.transactional_session not in SESSIONS:
            raise SettingError("transactional_session", f"expected one of {', '.join(SESSIONS)}, "
                               f"got {self.transactional_session!r}")
        _check_text("tenant", self.tenant)
        if self.listener_dsn is not None:
            _check_text("listener_dsn", self.listener_dsn)
        if self.heartbeat * 3 > self.lease:
            raise SettingError("heartbeat", f"{self.heartbeat} is longer than a third of the lease ({self.lease}); "
                               "two missed beats must not lose it")
        if self.max_poll < self.poll:
            raise SettingError("max_poll", f"{self.max_poll} is shorter than poll ({self.poll})")

    def with_changes(self, changes: Mapping[str, Any]) -> Settings:
        """A copy with some settings replaced; an unknown name is refused with the near miss."""
        known = [f.name for f in fields(self)]
        for name in changes:
            if name not in known:
                raise SettingError.unknown(name, known)
        lease = changes.get("lease")
        if isinstance(lease, timedelta) and "heartbeat" not in changes:
            changes = {**changes, "heartbeat": min(self.heartbeat, lease / 3)}
        return replace(self, **changes)


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
        raise SettingError(name, f"STEPWELL_{name.upper()}={text!r} does not parse: {error}") from error


def parse_queues(entries: list[str]) -> dict[str, int]:
    """Queues from `name=slots` texts, as on the command line."""
    queues: dict[str, int] = {}
    for entry in entries:
        name, _, slots = entry.strip().partition("=")
        if not DIGITS.fullmatch(slots):
            raise SettingError("queues", f"{entry!r:.100} is not of the form name=slots, for example default=20")
        queues[name] = int(slots)
    return queues


def parse_fair_by(entries: list[str]) -> dict[str, str]:
    """By what queues are shared out, from `name=tenant` texts, as on the command line; empty texts say nothing."""
    fair_by: dict[str, str] = {}
    for entry in filter(None, entries):
        name, _, by = entry.strip().partition("=")
        if not by:
            raise SettingError("fair_by", f"{entry!r} is not of the form name=tenant, for example default=tenant")
        fair_by[name] = by
    return fair_by


def check_name(name: str, what: str) -> str | None:
    """What is wrong with a machine's, step's or queue's name; None if it is fine."""
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
            raise SettingError("fair_by", f"queue {name!r} can not be shared out by {by!r}; only by {FAIR_BY[0]!r}")


def _check_duration(
    name: str, value: object, *, least: timedelta, most: timedelta = timedelta(days=365)
) -> None:
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
