"""One start, checked before it is stored."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stepwell import (
    Context,
    Done,
    InvalidInput,
    InvalidState,
    Machine,
    PayloadTooLarge,
    UnknownMachine,
    UnknownStep,
    job,
    step,
)
from stepwell._core.registry import Registry
from stepwell._core.start_request import NewInstance, admit, admit_many

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Order(Machine, queue="checkout", version=3):
    @dataclass
    class State:
        count: int = 0

    @step
    async def start(self, ctx: Context[State]) -> Done:
        return Done()

    @step
    async def ship(self, ctx: Context[State]) -> Done:
        return Done()


@job
def add(left: int, right: int = 2) -> int:
    return left + right


@job
def multiply(left: int) -> int:
    return left


REGISTRY = Registry([Order, add, multiply])


def admitted(machine: object = Order, state: Any = None, **options: Any) -> NewInstance:
    return admit(REGISTRY, machine, state, options, tenant="acme", max_payload=1_000)


def test_a_start_without_options_takes_everything_from_the_machine() -> None:
    assert admitted() == NewInstance(
        machine="Order", version=3, step="start", queue="checkout", priority=0, due=None, tenant="acme",
        concurrency_key=None, state='{"count":0}',
    )  # fmt: skip


def test_every_option_of_a_start_is_applied() -> None:
    entry = admitted(
        state={"count": 4}, queue="fast", priority=-5, delay=timedelta(seconds=1), step=Order.ship,
        concurrency_key="acct:7", tenant="other",
    )  # fmt: skip

    assert entry == NewInstance(
        machine="Order", version=3, step="ship", queue="fast", priority=-5, due=timedelta(seconds=1),
        tenant="other", concurrency_key="acct:7", state='{"count":4}',
    )  # fmt: skip


def test_arguments_of_a_job_are_checked_by_its_signature() -> None:
    assert admitted(add, add.args(1)).state == '{"left":1,"right":2}'
    with pytest.raises(InvalidState, match=r"args\.left: expected int, got str"):
        admitted(add, {"left": "one"})


def test_arguments_of_another_job_are_refused() -> None:
    with pytest.raises(InvalidInput, match="arguments of job 'multiply', not of 'add'"):
        admitted(add, multiply.args(1))


@pytest.mark.parametrize(
    ("options", "identity"),
    [
        ({}, (None, None)),
        ({"key": "order:42"}, ("order:42", "live")),
        ({"key": "order:42", "key_scope": "live"}, ("order:42", "live")),
        ({"key": "order:42", "key_scope": "forever"}, ("order:42", "forever")),
        ({"key_scope": "forever"}, (None, None)),
        ({"key": None, "key_scope": None}, (None, None)),
    ],
)
def test_rule_18_a_key_has_a_scope_and_live_is_the_default(
    options: dict[str, Any], identity: tuple[str | None, str | None]
) -> None:
    """Rule 18: key_scope="live" by default; without a key there is no scope either."""
    entry = admitted(**options)

    assert (entry.key, entry.key_scope) == identity


def test_a_version_chooses_among_those_registered() -> None:
    assert admitted(version=3).version == 3
    with pytest.raises(UnknownMachine, match="'Order version 2' is not registered"):
        admitted(version=2)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"key": ""}, "key"),
        ({"key": "x" * 201}, "key"),
        ({"key": "a\x00"}, "key"),
        ({"key": "\ud800"}, "key"),
        ({"key": 42}, "key"),
        ({"key": "", "key_scope": None}, "key"),
        ({"key": "a", "key_scope": "runnable"}, "key_scope"),
        ({"key": "a", "key_scope": ["live"]}, "key_scope"),
        ({"key_scope": "done"}, "key_scope"),
        ({"priority": 40_000}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"delay": timedelta(seconds=-1)}, "delay"),
        ({"delay": 3}, "delay"),
        ({"delay": timedelta(1), "at": NOON}, "delay"),
        ({"at": NOON.replace(tzinfo=None)}, "at"),
        ({"at": "noon"}, "at"),
        ({"at": NOON.replace(year=9_999)}, "at"),
        ({"queue": ""}, "queue"),
        ({"queue": 5}, "queue"),
        ({"concurrency_key": ""}, "concurrency_key"),
        ({"concurrency_key": "x" * 201}, "concurrency_key"),
        ({"tenant": "a\x00"}, "tenant"),
        ({"step": print}, "step"),
        ({"step": "shp"}, "step"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_rule_25_an_option_out_of_range_is_refused_by_field(options: dict[str, Any], field: str) -> None:
    """Rule 25: refused with the name of the field."""
    with pytest.raises(InvalidInput) as caught:
        admitted(**options)

    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field}: ")


def test_a_state_over_max_payload_is_refused() -> None:
    with pytest.raises(PayloadTooLarge, match=r"state: 1,\d+ bytes are more than max_payload \(1,000\)"):
        admitted(state={"count": 10**1_000 - 1})


def test_a_batch_takes_children_pairs_and_bare_machines() -> None:
    entries = admit_many(
        REGISTRY, [Order.child({"count": 1}, priority=2), (add, {"left": 1}), Order], tenant="", max_payload=1_000
    )

    assert [(e.machine, e.priority, e.state) for e in entries] == [
        ("Order", 2, '{"count":1}'), ("add", 0, '{"left":1,"right":2}'), ("Order", 0, '{"count":0}'),
    ]  # fmt: skip


def test_an_error_in_a_batch_names_its_position() -> None:
    with pytest.raises(UnknownStep) as caught:
        admit_many(REGISTRY, [Order, Order.child(step="nowhere")], tenant="", max_payload=1_000)

    assert caught.value.__notes__ == ["in entries[1]"]


@pytest.mark.parametrize("entries", ["Order", Order, {Order: None}, None])
def test_a_batch_that_is_not_a_list_is_refused(entries: Any) -> None:
    with pytest.raises(InvalidInput, match="entries: expected a list"):
        admit_many(REGISTRY, entries, tenant="", max_payload=1_000)


@pytest.mark.parametrize("entry", [(Order,), (Order, {}, {}, {}), None, []])
def test_an_entry_of_no_known_shape_is_refused_by_position(entry: Any) -> None:
    with pytest.raises(InvalidInput, match=r"entries\[1\]"):
        admit_many(REGISTRY, [Order, entry], tenant="", max_payload=1_000)
