"""How a job is declared, and what is refused at its definition."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, DefinitionError, Job, job
from stepwell.job import exponential
from stepwell.outcomes import Entry


@job
def add(left: int, right: int = 2) -> int:
    """Add two numbers."""
    return left + right


async def greet(name: str, ctx: Context[Any], polite: bool = True) -> str:
    return name


@pytest.mark.parametrize(("attempt", "seconds"), [(0, 1), (1, 2), (3, 8), (8, 256), (9, 300), (20, 300)])
def test_rule_10_the_default_backoff_doubles_up_to_five_minutes(attempt: int, seconds: int) -> None:
    """Rule 10: default backoff is min(1 s · 2^attempt, 5 min). Scenario 153."""
    assert exponential(attempt) == timedelta(seconds=seconds)


def test_a_job_has_its_functions_name_and_plain_defaults() -> None:
    assert (add.name, add.version, add.queue, add.max_attempts, add.timeout) == ("add", 1, "default", 20, None)
    assert add.backoff is exponential
    assert add.__doc__ == "Add two numbers."


def test_a_job_is_still_a_function() -> None:
    assert add(1) == 3
    assert add(1, right=5) == 6


def test_options_of_a_job_are_applied() -> None:
    made = job(name="hello", version=2, queue="mail", max_attempts=3, timeout=timedelta(seconds=1))(greet)

    assert (made.name, made.version, made.queue, made.max_attempts) == ("hello", 2, "mail", 3)
    assert made.is_async


def test_the_parameter_annotated_context_is_not_an_argument() -> None:
    made = job(greet)

    assert made.context_parameter == "ctx"
    assert list(made.parameters) == ["name", "polite"]


def test_arguments_are_kept_by_name_even_if_given_by_position() -> None:
    assert add.args(1).values == {"left": 1}
    assert add.args(1, right=4).values == {"left": 1, "right": 4}


def test_a_child_is_a_start_with_its_options() -> None:
    assert add.child({"left": 1}, queue="slow") == Entry(add, {"left": 1}, {"queue": "slow"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"name": ""}, "name is empty"),
        ({"name": 7}, "name must be a string"),
        ({"name": "a@b"}, "'@'"),
        ({"queue": ""}, "queue is empty"),
        ({"version": 0}, "version must be a whole number"),
        ({"max_attempts": 0}, "max_attempts must be a whole number"),
        ({"max_attempts": True}, "max_attempts must be a whole number"),
        ({"backoff": 5}, "backoff must be a function"),
        ({"timeout": 5}, "timeout: expected a timedelta"),
    ],
)
def test_an_invalid_job_is_refused_at_its_definition(options: dict[str, Any], words: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        Job(greet, **options)

    assert words in str(caught.value)


def test_a_job_that_yields_is_refused() -> None:
    def numbers() -> Any:
        yield 1

    with pytest.raises(DefinitionError, match="is a generator"):
        job(numbers)


def test_variadic_and_positional_only_parameters_are_refused() -> None:
    def variadic(*values: int) -> None: ...

    def keywords(**values: int) -> None: ...

    def positional(value: int, /) -> None: ...

    for function, name in ((variadic, "values"), (keywords, "values"), (positional, "value")):
        with pytest.raises(DefinitionError, match=f"parameter '{name}' is variadic or positional-only"):
            job(function)


def test_an_annotation_that_does_not_resolve_is_refused() -> None:
    def unresolved(value: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - the point of the test

    with pytest.raises(DefinitionError, match="cannot be resolved"):
        job(unresolved)
