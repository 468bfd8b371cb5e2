"""Invalid limits are refused with the field's name; and the limit requirement of an instance's next step."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepwell import (
    ConcurrencyLimit,
    Context,
    DefinitionError,
    Done,
    InvalidInput,
    Machine,
    RateLimit,
    UnknownLimit,
    step,
)
from stepwell._core.limits.requirement import Declared, LimitRequirement
from stepwell._core.registry import Registry
from stepwell._core.start_request import admit
from stepwell.outcomes import UNSET

LIMITS = [ConcurrencyLimit("stripe", 3), RateLimit("mail", 10, per=60, burst=5), RateLimit("stripe", 2)]


class Pay(Machine, initial="pay"):
    @step(concurrency_limit=("stripe", 7), rate_limit="mail", weight=2)
    async def pay(self, ctx: Context[Any]) -> Done:
        return Done()

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done()


REGISTRY = Registry([Pay], LIMITS)


@pytest.mark.parametrize(
    ("options", "field", "problem"),
    [
        ({"concurrency_limit": "strpe"}, "concurrency_limit", "did you mean 'stripe'"),
        ({"concurrency_limit": "stripe:7"}, "concurrency_limit", "no concurrency limit is called 'stripe:7'"),
        ({"concurrency_limit": "mail"}, "concurrency_limit", "is a rate limit"),
        ({"concurrency_limit": ("stripe", "")}, "concurrency_limit", "is empty"),
        ({"concurrency_limit": ("stripe", "x" * 201)}, "concurrency_limit", "201 characters"),
        ({"concurrency_limit": ("stripe", "a\x00")}, "concurrency_limit", "NUL"),
        ({"concurrency_limit": ("stripe", None)}, "concurrency_limit", "expected a limit's name"),
        ({"concurrency_limit": 7}, "concurrency_limit", "expected a limit's name"),
        ({"rate_limit": "nobody"}, "rate_limit", "no rate limit is called 'nobody'"),
        ({"rate_limit": ("mail", True)}, "rate_limit", "expected a limit's name"),
        ({"rate_limit": "mail", "weight": 0}, "weight", "not a whole number"),
        ({"rate_limit": "mail", "weight": 6}, "weight", "above the burst of rate limit 'mail' (5)"),
        ({"rate_limit": "mail", "weight": 1.5}, "weight", "not a whole number"),
        ({"rate_limit": "mail", "weight": True}, "weight", "not a whole number"),
        ({"weight": 6}, "weight", "above the burst"),
        ({"weight": 2, "step": "end"}, "weight", "counts against a rate_limit"),
    ],
)
def test_a_start_that_could_never_run_is_refused_with_the_field(
    options: dict[str, Any], field: str, problem: str
) -> None:
    with pytest.raises(InvalidInput, match=problem.replace("(", r"\(").replace(")", r"\)")) as refused:
        admit(REGISTRY, Pay, None, options, tenant="", max_payload=1_000)

    assert refused.value.field == field


def test_an_unknown_limit_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownLimit) as refused:
        Declared(LIMITS).concurrency("strpe")

    assert (refused.value.limit, refused.value.known) == ("strpe", ("stripe",))


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        ({}, LimitRequirement("stripe:7", None, "mail", 2)),
        ({"concurrency_limit": ("stripe", "x")}, LimitRequirement("stripe:7", "stripe:x", "mail", 2)),
        ({"rate_limit": ("stripe", 1)}, LimitRequirement("stripe:7", None, "stripe:1", 1)),
        ({"weight": 4}, LimitRequirement("stripe:7", None, "mail", 4)),
        ({"step": "end"}, None),
        ({"step": "end", "concurrency_limit": "stripe"}, LimitRequirement("stripe", "stripe", None, 1)),
    ],
)
def test_a_start_needs_what_it_names_and_what_its_step_declares(options: dict[str, Any],
                                                                needs: LimitRequirement | None) -> None:
    assert admit(REGISTRY, Pay, None, options, tenant="", max_payload=1_000).needs == needs


@pytest.mark.parametrize(
    ("step_declares", "had", "options", "needs"),
    [
        (None, None, (UNSET, UNSET, None), None),
        (None, LimitRequirement("stripe:7", None, "mail", 2), (UNSET, UNSET, None), LimitRequirement()),
        (None, LimitRequirement("stripe:7", "stripe", "mail", 2), (UNSET, UNSET, None), LimitRequirement("stripe",
                                                                                                         "stripe")),
        (None, LimitRequirement("stripe", "stripe"), (None, UNSET, None), LimitRequirement()),
        (None, LimitRequirement("stripe", "stripe"), (("stripe", 2), UNSET, None), LimitRequirement("stripe:2",
                                                                                                    "stripe:2")),
        (LimitRequirement("stripe:9", None, "mail", 3), LimitRequirement("stripe", "stripe"), (UNSET, UNSET, None),
         LimitRequirement("stripe:9", "stripe", "mail", 3)),
        (LimitRequirement("stripe:9", None, "mail", 3), None, (UNSET, None, None), LimitRequirement("stripe:9")),
        (LimitRequirement(None, None, "mail", 3), None, (UNSET, UNSET, 5), LimitRequirement(None, None, "mail", 5)),
        (None, None, (UNSET, "mail", 5), LimitRequirement(None, None, "mail", 5)),
    ],
)  # fmt: skip
def test_next_keeps_the_instances_limit_and_takes_tokens_for_one_step(
    step_declares: LimitRequirement | None, had: LimitRequirement | None, options: Any, needs: LimitRequirement | None
) -> None:
    assert Declared(LIMITS).of_next(step_declares, had, *options) == needs


def test_a_step_with_an_unknown_limit_is_refused_at_registration() -> None:
    with pytest.raises(DefinitionError, match=r"Pay\.pay: rate_limit: no rate limit is called 'mail'"):
        Registry([Pay])


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: ConcurrencyLimit("", 1), "1 to 200 characters"),
        (lambda: ConcurrencyLimit("a:b", 1), "has a ':'"),
        (lambda: ConcurrencyLimit("a", 0), "n: 0 is not a whole number"),
        (lambda: ConcurrencyLimit("a", True), "n: True is not a whole number"),
        (lambda: RateLimit("a", 0), "n: 0 is not a whole number"),
        (lambda: RateLimit("a", 1, per=0), "per: 0 is out of range"),
        (lambda: RateLimit("a", 1, per=timedelta(days=40_000)), "out of range"),
        (lambda: RateLimit("a", 1, per="1s"), "expected a timedelta or seconds"),  # type: ignore[arg-type]
        (lambda: RateLimit("a", 1, burst=0), "burst: 0 is not a whole number"),
        (lambda: Declared([ConcurrencyLimit("a", 1), ConcurrencyLimit("a", 2)]), "two concurrency limits"),
        (lambda: Declared(ConcurrencyLimit("a", 1)), "expected a list"),  # type: ignore[arg-type]
        (lambda: Declared(["a"]), "neither a ConcurrencyLimit nor a RateLimit"),  # type: ignore[list-item]
    ],
)
def test_an_invalid_limit_is_refused_at_its_declaration(make: Any, problem: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        make()

    assert problem in str(refused.value)


def test_a_rate_defaults_to_per_second_with_a_burst_of_n() -> None:
    limit = RateLimit("a", 7)

    assert (limit.per, limit.burst) == (timedelta(seconds=1), 7)
    assert RateLimit("a", 7, per=0.5).per == timedelta(milliseconds=500)
