"""Declares limits, for `Engine(limits=[…])`: how many instances run at a time, and how often."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal, TypeAlias

from stepwell.errors import DefinitionError

LimitKind: TypeAlias = Literal["concurrency", "rate"]
LimitRef: TypeAlias = str | tuple[str, str | int]
"""A limit by its name, or one part of it: `"stripe"`, `("stripe", "customer-7")`. Each part is a limit of its own."""

MAX_NAME: Final = 200
MOST: Final = 1_000_000_000
SHORTEST_PERIOD: Final = timedelta(microseconds=1)
LONGEST_PERIOD: Final = timedelta(days=36_500)


@dataclass(frozen=True, slots=True)
class ConcurrencyLimit:
    """At most `n` instances that name it execute at a time, in the whole cluster."""

    name: str
    n: int

    def __post_init__(self) -> None:
        where = f"ConcurrencyLimit({self.name!r})"
        _check_name(where, self.name)
        _check(where, "n", whole_problem(self.n))


@dataclass(frozen=True, slots=True, init=False)
class RateLimit:
    """A bucket of `burst` tokens (default: n) that gets `n` tokens per `per`; a step takes tokens by its weight."""

    name: str
    n: int
    per: timedelta
    burst: int

    def __init__(
        self, name: str, n: int, per: timedelta | float = timedelta(seconds=1), burst: int | None = None
    ) -> None:
        where = f"RateLimit({name!r})"
        _check_name(where, name)
        _check(where, "n", whole_problem(n))
        _check(where, "per", period_problem(per))
        _check(where, "burst", None if burst is None else whole_problem(burst))
        for field, value in (
            ("name", name), ("n", n), ("per", to_period(per)), ("burst", n if burst is None else burst),
        ):  # fmt: skip
            object.__setattr__(self, field, value)


Limit: TypeAlias = ConcurrencyLimit | RateLimit


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The limits in `@step(…)` and `@job(…)`, as written."""

    concurrency_limit: LimitRef | None = None
    rate_limit: LimitRef | None = None
    weight: int | None = None


def step_limits(
    concurrency_limit: LimitRef | None, rate_limit: LimitRef | None, weight: int | None
) -> StepLimits | None:
    """The limits of a step; None if it has none."""
    if concurrency_limit is None and rate_limit is None and weight is None:
        return None
    return StepLimits(concurrency_limit, rate_limit, weight)


def kind_of(limit: Limit) -> LimitKind:
    """What a limit counts: running steps (concurrency), or starting steps (rate)."""
    return "concurrency" if isinstance(limit, ConcurrencyLimit) else "rate"


def by_kind_and_name(limits: Iterable[Limit]) -> dict[tuple[LimitKind, str], Limit]:
    """Declared limits; a rate limit and a concurrency limit may share a name, two of a kind may not."""
    if not isinstance(limits, Iterable):
        raise DefinitionError(f"limits: expected a list, got {limits!r}; write limits=[…]")
    found: dict[tuple[LimitKind, str], Limit] = {}
    for limit in limits:
        if not isinstance(limit, Limit):
            raise DefinitionError(f"limits: {limit!r} is neither a ConcurrencyLimit nor a RateLimit")
        key = kind_of(limit), limit.name
        if key in found:
            raise DefinitionError(f"limits: two {key[0]} limits are called {limit.name!r}; give one another name")
        found[key] = limit
    return found


def whole_problem(number: object, *, least: int = 1) -> str | None:
    """The problem of a number of slots, tokens or instances; None if it is valid."""
    if isinstance(number, bool) or not isinstance(number, int) or not least <= number <= MOST:
        return f"{number!r} is not a whole number from {least} to {MOST:,}"
    return None


def period_problem(per: object) -> str | None:
    """The problem of a period; None if it is valid."""
    if isinstance(per, bool) or not isinstance(per, timedelta | int | float):
        return f"expected a timedelta or seconds, got {per!r}"
    seconds = per.total_seconds() if isinstance(per, timedelta) else per
    if not SHORTEST_PERIOD.total_seconds() <= seconds <= LONGEST_PERIOD.total_seconds():
        return f"{per!r} is out of range (a microsecond to {LONGEST_PERIOD.days:,} days)"
    return None


def to_period(per: timedelta | float) -> timedelta:
    """A period, given as a timedelta or in seconds."""
    return per if isinstance(per, timedelta) else timedelta(seconds=per)


def _check_name(where: str, name: object) -> None:
    if not isinstance(name, str) or not name or len(name) > MAX_NAME or not name.isprintable():
        raise DefinitionError(f"{where}: name must have 1 to {MAX_NAME} characters that print, not {name!r}")
    if ":" in name:
        raise DefinitionError(f"{where}: the name has a ':', which stands between name and part")


def _check(where: str, field: str, problem: str | None) -> None:
    if problem is not None:
        raise DefinitionError(f"{where}: {field}: {problem}")
