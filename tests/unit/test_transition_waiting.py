"""From Await and Spawn to a commit, and what every outcome does to the awaited signals."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Await, Context, Done, InvalidInput, Machine, Next, Retry, Spawn, Stop, UnknownMachine, step
from stepwell._core.commit import Commit, Park
from stepwell._core.instance import Claim
from stepwell._core.registry import Registry
from stepwell._core.status import Status
from stepwell._core.transition import transition
from tests.unit.claims import make_claim

HANDED = (11, 13)


class Order(Machine, version=2):
    @dataclass
    class State:
        count: int = 0

    @step
    async def start(self, ctx: Context[State]) -> Done:
        return Done()

    @step
    async def ship(self, ctx: Context[State]) -> Done:
        return Done()


class Item(Machine, queue="items"):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done()


REGISTRY = Registry([Order, Item])


def commit_of(outcome: object, claim: Claim | None = None, *, state: Any = None) -> Commit:
    return transition(
        outcome, claim=make_claim() if claim is None else claim, definition=REGISTRY.resolve(Order),
        state=Order.State() if state is None else state, mark=b'{"count":0}', max_payload=1_000, awaited=HANDED,
        registry=REGISTRY,
    )  # fmt: skip


def test_rule_4_await_parks_at_then_and_consumes_nothing() -> None:
    """Rule 4: parks at `then`, attempt 0, consumes nothing; signals that the step saw do not wake it (rule 13)."""
    claim = make_claim(attempt=3)

    commit = commit_of(Await("paid", "refused", then=Order.ship, timeout=timedelta(hours=1)), claim)

    assert commit == Commit(
        claim=claim, status=Status.AWAITING_SIGNAL, step="ship", version=2, attempt=0,
        park=Park(awaits=("paid", "refused"), timeout=timedelta(hours=1), handed=HANDED),
    )  # fmt: skip


def test_rule_4_consume_drops_the_signals_of_the_step() -> None:
    """Rule 4: consume=True."""
    assert commit_of(Await("paid", then="ship", consume=True)).consumes == HANDED


def test_an_await_takes_names_once_and_in_order() -> None:
    assert commit_of(Await("b", "a", "b", then="ship")).park.awaits == ("b", "a")


def test_an_await_saves_the_state_given_or_changed() -> None:
    assert commit_of(Await("a", then="ship"), state=Order.State(3)).values.state == '{"count":3}'
    assert commit_of(Await("a", then="ship", state=Order.State(5)), state=Order.State(3)).values.state == '{"count":5}'
    assert commit_of(Await("a", then="ship")).values.state is None


@pytest.mark.parametrize(
    ("outcome", "field"),
    [
        (Await(then="ship"), "names"),
        (Await("", then="ship"), "names"),
        (Await("a", "x" * 201, then="ship"), "names"),
        (Await("a\x00", then="ship"), "names"),
        (Await(5, then="ship"), "names"),  # type: ignore[arg-type]
        (Await("a", then="shp"), "step"),
        (Await("a", then=5), "then"),  # type: ignore[arg-type]
        (Await("a", then="ship", timeout=timedelta(0)), "timeout"),
        (Await("a", then="ship", timeout=-timedelta(1)), "timeout"),
        (Await("a", then="ship", timeout=timedelta(days=40_000)), "timeout"),
        (Await("a", then="ship", timeout=5), "timeout"),  # type: ignore[arg-type]
        (Spawn(None, then="ship"), "children"),  # type: ignore[arg-type]
        (Spawn("Item", then="ship"), "children"),
        (Spawn([(Item,)], then="ship"), "children[0]"),
        (Spawn([Item.child(priority=40_000)], then="ship"), "priority"),
        (Spawn([], then="shp"), "step"),
    ],
)
def test_rule_25_an_invalid_field_is_refused_by_name(outcome: object, field: str) -> None:
    """Rule 25: refused with the name of the field, before anything goes to the database."""
    with pytest.raises(InvalidInput) as caught:
        commit_of(outcome)

    assert caught.value.field == field


def test_rule_5_spawn_parks_with_its_children_and_consumes_the_signals() -> None:
    """Rule 5: children and park in one commit; children are of the parent's tenant."""
    claim = make_claim(attempt=3, tenant="acme")

    commit = commit_of(Spawn([Item.child({"n": 1}, key="item:1"), Item], then="ship"), claim)

    assert (commit.status, commit.step, commit.attempt, commit.consumes) == (
        Status.AWAITING_CHILDREN, "ship", 0, HANDED,
    )  # fmt: skip
    assert commit.park.children is not None
    assert [(c.machine, c.queue, c.tenant, c.key, c.state) for c in commit.park.children] == [
        ("Item", "items", "acme", "item:1", '{"n":1}'), ("Item", "items", "acme", None, "{}"),
    ]  # fmt: skip


def test_rule_5_a_spawn_of_no_children_continues_at_once() -> None:
    """Rule 5: zero children: runnable."""
    commit = commit_of(Spawn([], then="ship"))

    assert (commit.status, commit.park.children) == (Status.RUNNABLE, ())


def test_an_error_in_a_child_names_its_position() -> None:
    with pytest.raises(UnknownMachine) as caught:
        commit_of(Spawn([Item, Item.child(version=9)], then="ship"))

    assert caught.value.__notes__ == ["in children[1]"]


@pytest.mark.parametrize(
    ("outcome", "consumes", "keeps"),
    [
        (Next("ship"), HANDED, False),
        (Retry(), (), True),
        (Await("a", then="ship"), (), False),
        (Spawn([], then="ship"), HANDED, False),
        (Done(), (), False),
        (Stop("no luck"), (), True),
    ],
)
def test_rules_2_to_6_what_each_outcome_consumes_and_keeps(
    outcome: object, consumes: tuple[int, ...], keeps: bool
) -> None:
    """Rules 2 to 6: Next and Spawn consume the step's signals; Retry and Stop keep them."""
    commit = commit_of(outcome)

    assert (commit.consumes, commit.keeps_awaits) == (consumes, keeps)


@pytest.mark.parametrize(
    ("outcome", "claim", "plain"),
    [
        (Retry(), {}, True),
        (Done(), {}, True),
        (Done(), {"has_inbox": True}, True),
        (Stop("x"), {"has_inbox": True}, True),
        (Done(), {"parent_id": 5}, False),
        (Retry(), {"parent_id": 5}, True),
        (Retry(), {"concurrency_key": "k"}, False),
        (Next("ship"), {}, False),
        (Await("a", then="ship"), {}, False),
        (Spawn([], then="ship"), {}, False),
    ],
)
def test_only_a_commit_without_a_second_statement_is_simple(
    outcome: object, claim: dict[str, Any], plain: bool
) -> None:
    assert commit_of(outcome, make_claim(**claim)).is_plain is plain


def test_rule_6_only_an_end_counts_at_the_parent() -> None:
    """Rule 6: the parent's join is counted with the terminal commit."""
    child = make_claim(parent_id=5)

    assert [commit_of(o, child).joins for o in (Done(), Stop("x"), Retry(), Next("ship"))] == [5, 5, None, None]


def test_a_spawn_with_a_key_among_its_children_knows_it() -> None:
    assert commit_of(Spawn([Item, Item.child(key="a")], then="ship")).spawns_keys
    assert not commit_of(Spawn([Item], then="ship")).spawns_keys
    assert not commit_of(Done()).spawns_keys


def test_an_await_is_a_value() -> None:
    one, two = (Await("a", "b", then="ship", timeout=timedelta(1)) for _ in range(2))

    assert one == two
    assert (one.names, one.then, one.timeout, one.consume) == (("a", "b"), "ship", timedelta(1), False)
    with pytest.raises(AttributeError):
        one.consume = True  # type: ignore[misc]
