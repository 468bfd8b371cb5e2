"""The slots and tokens that a step needs; names and weights are checked here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stepwell._core.serialization.codec import encode_value
from stepwell._core.validation import check_key
from stepwell.errors import InvalidInput, UnknownLimit
from stepwell.limits import (
    MOST,
    Limit,
    LimitKind,
    LimitRef,
    RateLimit,
    StepLimits,
    by_kind_and_name,
    whole_problem,
)
from stepwell.outcomes import UNSET, Unset


@dataclass(frozen=True, slots=True)
class LimitRequirement:
    """Limits as stored, "name" or "name:part"; `own_limit` is the instance's, which a step may replace."""

    concurrency_limit: str | None = None
    own_limit: str | None = None
    rate_limit: str | None = None
    weight: int = 1

    @property
    def fields(self) -> tuple[str | None, str | None, str | None, int]:
        """The columns, in the store's order."""
        return self.concurrency_limit, self.own_limit, self.rate_limit, self.weight


def requirement_text(needs: LimitRequirement | None) -> str | None:
    """A requirement as the store takes it: a JSON array of the fields; None stays None."""
    if needs is None:
        return None
    return encode_value(needs.fields, "limits")


class Declared:
    """The limits that this engine declares, by kind and name."""

    def __init__(self, limits: Iterable[Limit] = ()) -> None:
        self._limits: Mapping[tuple[LimitKind, str], Limit] = by_kind_and_name(limits)

    def all(self) -> list[Limit]:
        """Every limit, by kind and name."""
        return [limit for _, limit in sorted(self._limits.items())]

    def concurrency(self, ref: LimitRef | None) -> str | None:
        """A concurrency limit as it is stored."""
        return None if ref is None else self._stored("concurrency", "concurrency_limit", ref)

    def rate(self, ref: LimitRef | None) -> str | None:
        """A rate limit as it is stored."""
        return None if ref is None else self._stored("rate", "rate_limit", ref)

    def weight(self, rate: str | None, weight: object) -> int:
        """The weight that counts against a stored rate limit."""
        if weight is None:
            return 1
        if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= MOST:
            raise InvalidInput("weight", str(whole_problem(weight)))
        if rate is None:
            raise InvalidInput("weight", "counts against a rate_limit, and there is none; name one, or leave it out")
        limit = self._limits.get(("rate", rate.partition(":")[0]))
        if isinstance(limit, RateLimit) and weight > limit.burst:
            raise InvalidInput("weight", f"{weight} is above the burst of rate limit {limit.name!r} ({limit.burst}): "
                               "it could never run")
        return weight

    def _stored(self, kind: LimitKind, field: str, ref: object) -> str:
        name, part = _parts(field, ref)
        if (kind, name) not in self._limits:
            other: LimitKind = "rate" if kind == "concurrency" else "concurrency"
            if (other, name) in self._limits:
                raise InvalidInput(field, f"{name!r} is a {other} limit; name it as {other}_limit")
            raise UnknownLimit(field, name, [known for of, known in sorted(self._limits) if of == kind])
        return name if part is None else f"{name}:{part}"

    def of_step(self, limits: StepLimits) -> LimitRequirement:
        """The requirement that a step declares, checked."""
        rate = self.rate(limits.rate_limit)
        return LimitRequirement(self.concurrency(limits.concurrency_limit), None, rate, self.weight(rate,
                                                                                                    limits.weight))

    def of_start(self, step: LimitRequirement | None, options: Mapping[str, Any]) -> LimitRequirement | None:
        """The requirement of a new instance at its first step."""
        own, rate, weight = options.get("concurrency_limit"), options.get("rate_limit"), options.get("weight")
        if step is None and own is None and rate is None and weight is None:
            return None
        return self._needed(step, self.concurrency(own), UNSET if rate is None else rate, weight)

    def of_next(
        self,
        step: LimitRequirement | None,
        had: LimitRequirement | None,
        own: LimitRef | Unset | None = UNSET,
        rate: LimitRef | Unset | None = UNSET,
        weight: int | None = None,
    ) -> LimitRequirement | None:
        """The requirement of an instance at its next step; None if it had none and gets none."""
        if step is None and had is None and own is UNSET and rate is UNSET and weight is None:
            return None
        kept = None if had is None else had.own_limit
        return self._needed(step, kept if isinstance(own, Unset) else self.concurrency(own), rate, weight)

    def _needed(
        self, step: LimitRequirement | None, own: str | None, rate: LimitRef | Unset | None, weight: int | None
    ) -> LimitRequirement:
        declared = step or LimitRequirement()
        text = declared.rate_limit if isinstance(rate, Unset) else self.rate(rate)
        counted = declared.weight if isinstance(rate, Unset) and weight is None else self.weight(text, weight)
        return LimitRequirement(declared.concurrency_limit or own, own, text, counted)


def _parts(field: str, ref: object) -> tuple[str, str | None]:
    match ref:
        case str():
            return ref, None
        case (str() as name, str() as part):
            return name, check_key(field, part)
        case (str() as name, int() as part) if not isinstance(part, bool):
            return name, str(part)
        case _:
            raise InvalidInput(field, f"expected a limit's name, or (name, part) part a string or number, got {ref!r}")
