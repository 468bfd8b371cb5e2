"""An interaction that was read in this process is completed without a lookup."""

from __future__ import annotations

import pytest

from stepwell import UnknownInteraction
from stepwell._client.completions import interaction_cache
from stepwell._client.completions.interaction_cache import InteractionCache
from stepwell._store.interactions import Found
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.features.interactions.machines import Expense
from tests.store.wire_log import Tally

FIND = "interactions/find"


@pytest.fixture
async def h(make_harness: MakeHarness) -> Harness:
    return await make_harness([Expense])


async def asked(h: Harness) -> str:
    """The id of an interaction that no engine has read."""
    await h.engine.start(Expense, {"amount": 7})
    await h.drain()
    [row] = await h.sql("select id::text from stepwell.interactions")
    return str(row["id"])


async def tally_of(h: Harness) -> Tally:
    tally = Tally(h.engine._opened)
    await tally.attach()
    return tally


async def test_a_listed_interaction_is_completed_without_a_lookup(h: Harness) -> None:
    id_ = await asked(h)
    tally = await tally_of(h)
    await h.engine.interactions.pending()

    done = await h.engine.complete(interaction=id_, reply={"approved": True})

    assert (done.interaction_id, done.machine, done.step, done.is_duplicate) == (id_, "Expense", "start", False)
    assert FIND not in tally.sent


@pytest.mark.parametrize("by", ["nothing", "another completion", "its correlation too"])
async def test_an_interaction_that_is_not_cached_is_looked_up(h: Harness, by: str) -> None:
    id_ = await asked(h)
    named = {"interaction": id_}
    if by == "another completion":
        await h.engine.interactions.get(id_)
        await h.engine.complete(**named, reply={"approved": True})
    if by == "its correlation too":
        named["correlation"] = (await h.engine.interactions.get(id_)).correlation_id
    tally = await tally_of(h)

    done = await h.engine.complete(**named, reply={"approved": True})

    assert done.is_duplicate is (by == "another completion")
    assert FIND in tally.sent


async def test_an_interaction_listed_for_one_tenant_is_unknown_to_another(h: Harness) -> None:
    id_ = await asked(h)
    await h.engine.interactions.pending()

    with pytest.raises(UnknownInteraction):
        await h.engine.complete(interaction=id_, reply={"approved": True}, tenant="other")


async def test_an_interaction_deleted_after_its_listing_is_unknown(h: Harness) -> None:
    id_ = await asked(h)
    await h.engine.interactions.pending()
    for table in ("interactions", "await_units", "instance_data", "instances"):
        await h.sql(f"delete from stepwell.{table}")

    with pytest.raises(UnknownInteraction):
        await h.engine.complete(interaction=id_, reply={"approved": True})


def test_the_cache_is_bounded_and_drops_its_oldest_entries_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interaction_cache, "MOST_KNOWN", 2)
    some = InteractionCache()

    some.note("t", [Found(f"q{n}", n, n, "m", 1, "s", '["any"]') for n in range(3)])

    assert [some.pop(f"q{n}", None, "t") is not None for n in range(3)] == [False, True, True]


def test_an_interaction_with_a_projector_is_not_cached() -> None:
    some = InteractionCache()

    some.note("t", [Found("q", 1, 1, "m", 1, "s", '["projected", "a", "b", "c", "d"]')])

    assert some.pop("q", None, "t") is None
