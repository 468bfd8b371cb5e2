"""Options of transports, read one by one: a wrong one is refused with the name of its field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import import_module
from types import ModuleType
from typing import Any, TypeVar

from stepwell.errors import DefinitionError, MissingExtra
from stepwell.transports.broker.settle import Retries
from stepwell.transports.webhook.headers import OWN_PREFIX, read_headers

T = TypeVar("T")

LONGEST: timedelta = timedelta(hours=12)
MOST_TRIES = 10_000


class Options:
    """The options of one transport: `Options("Kafka", "payments").read("key", read_key, key)`."""

    def __init__(self, kind: str, name: str) -> None:
        self._shown = f"{kind}({name!r})"

    def read(self, field: str, read: Callable[[Any], T], value: object) -> T:
        """Read one; DefinitionError names transport and field."""
        try:
            return read(value)
        except (ValueError, TypeError) as error:
            raise self.error(field, str(error)) from error

    def read_retries(self, tries: object, every: object) -> Retries:
        """How long a completion of an unknown interaction is tried again."""
        number = self.read("tries", read_whole, tries)
        if number > MOST_TRIES:
            raise self.error("tries", f"expected at most {MOST_TRIES:,}, got {number:,}")
        return Retries(number, self.read("every", read_time, every))

    def error(self, field: str, problem: str) -> DefinitionError:
        return DefinitionError(f"{self._shown}: {field}: {problem}")


def read_time(value: object) -> timedelta:
    if not isinstance(value, timedelta) or not timedelta(0) < value <= LONGEST:
        raise ValueError(f"expected a timedelta above 0, at most {LONGEST}, got {value!r}")
    return value


def read_number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"expected a whole number from 1 on, got {value!r}")
    return value


def read_whole(value: object) -> int:
    return 0 if value == 0 and not isinstance(value, bool) else read_number(value)


def read_text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"expected a name, got {value!r}")
    return value


def read_author_headers(headers: Mapping[str, str] | None, *prefixes: str) -> dict[str, str]:
    """An author's headers; those with our prefix, or one of the broker's, are refused."""
    return read_headers(headers or {}, reserved=(), prefixes=(OWN_PREFIX, *prefixes))


def import_client(module: str, extra: str, feature: str) -> ModuleType:
    """Our module that needs the packages of an extra."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("stepwell"):
            raise
        raise MissingExtra(extra, feature) from error
