"""A question that was read in this process is answered without a look at it."""

from __future__ import annotations

import pytest

from stepwell import UnknownInteraction
from stepwell._runtime import known
from stepwell._runtime.known import Known
from stepwell._store.interactions import Found
from stepwell.testing import Harness
from tests.asks.machines import Expense
from tests.conftest import MakeHarness
from tests.store.tally import Tally

FIND = "interactions/find"


@pytest.fixture
async def h(make_harness: MakeHarness) -> Harness:
    return await make_harness([Expense])


async def asked(h: Harness) -> str:
    """The id of a question that nobody has read."""
    await h.engine.start(Expense, {"amount": 7})
    await h.drain()
    [row] = await h.sql("select id::text from stepwell.interactions")
    return str(row["id"])


async def tally_of(h: Harness) -> Tally:
    tally = Tally(h.engine._opened)
    await tally.attach()
    return tally


async def test_what_was_listed_is_answered_without_being_looked_up(h: Harness) -> None:
    id_ = await asked(h)
    tally = await tally_of(h)
    await h.engine.interactions.pending()

    done = await h.engine.complete(interaction=id_, reply={"approved": True})

    assert (done.interaction_id, done.machine, done.step, done.is_duplicate) == (id_, "Expense", "start", False)
    assert FIND not in tally.sent


@pytest.mark.parametrize("by", ["nothing", "another answer", "its correlation too"])
async def test_what_is_not_known_is_looked_up(h: Harness, by: str) -> None:
    id_ = await asked(h)
    named = {"interaction": id_}
    if by == "another answer":
        await h.engine.interactions.get(id_)
        await h.engine.complete(**named, reply={"approved": True})
    if by == "its correlation too":
        named["correlation"] = (await h.engine.interactions.get(id_)).correlation_id
    tally = await tally_of(h)

    done = await h.engine.complete(**named, reply={"approved": True})

    assert done.is_duplicate is (by == "another answer")
    assert FIND in tally.sent


async def test_what_was_listed_for_one_tenant_is_unknown_to_another(h: Harness) -> None:
    id_ = await asked(h)
    await h.engine.interactions.pending()

    with pytest.raises(UnknownInteraction):
        await h.engine.complete(interaction=id_, reply={"approved": True}, tenant="other")


async def test_what_is_gone_since_it_was_listed_is_unknown(h: Harness) -> None:
    id_ = await asked(h)
    await h.engine.interactions.pending()
    for table in ("interactions", "await_units", "instance_data", "instances"):
        await h.sql(f"delete from stepwell.{table}")

    with pytest.raises(UnknownInteraction):
        await h.engine.complete(interaction=id_, reply={"approved": True})


def test_only_so_many_are_known_and_the_oldest_are_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "MOST_KNOWN", 2)
    some = Known()

    some.note("t", [Found(f"q{n}", n, n, "m", 1, "s", '["any"]') for n in range(3)])

    assert [some.pop(f"q{n}", None, "t") is not None for n in range(3)] == [False, True, True]


def test_what_a_projector_replies_to_is_not_kept_for_it_needs_the_request() -> None:
    some = Known()

    some.note("t", [Found("q", 1, 1, "m", 1, "s", '["projected", "a", "b", "c", "d"]')])

    assert some.pop("q", None, "t") is None
