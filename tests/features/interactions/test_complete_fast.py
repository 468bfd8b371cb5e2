"""Concurrent simple completions take the fast path, one statement for all; others, and refused ones, the full path."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import Completion, Engine
from stepwell._core.store_errors import Outage, Refusal
from stepwell._store.connection.sql_files import statement
from stepwell._store.operations import fast_path_backoff
from stepwell.errors import CompletionConflict, InvalidReply
from stepwell.testing import Harness
from tests.features.interactions.looks import asked, interaction_rows
from tests.features.interactions.machines import Batch, Expense
from tests.store.wire_log import Tally
from tests.support.proxy import Part, proxy_to
from tests.support.waiting import eventually

YES: dict[str, Any] = {"approved": True}
FIND, SHORT, ALONE = "interactions/find", "interactions/complete_fast", "interactions/complete_and_settle"
NOTICE = "notifications/send"
LONG = ["BEGIN", "children/lock_parents", "interactions/complete", "await_units/settle", "COMMIT"]


@pytest.fixture
async def tally(h: Harness) -> Tally:
    made = Tally(h.engine._opened)
    await made.attach()
    return made


async def spent(tally: Tally, last: str) -> list[str]:
    """The statements of completions so far, up to their last one."""
    await eventually(lambda: last in tally.sent)
    return [name for name in tally.sent if name != NOTICE]


async def asked_by(h: Harness, machine: Any, state: Any, number: int = 1) -> list[str]:
    """Ids of interactions of this many instances, not read by the engine: it looks up only what it has not read."""
    await h.engine.start_many([(machine, state)] * number)
    await h.drain()
    return [row["id"] for row in await h.sql("select id::text from stepwell.interactions order by unit_id, item")]


async def complete(h: Harness, *ids: str, reply: Any = None) -> list[Any]:
    """Complete concurrently; completions and errors in the order of the interactions."""
    calls = (h.engine.complete(interaction=id_, reply=YES if reply is None else reply) for id_ in ids)
    return await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.parametrize("number", [1, 50])
async def test_concurrent_simple_completions_are_two_statements(h: Harness, tally: Tally, number: int) -> None:
    ids = await asked_by(h, Expense, {"amount": 3}, number)
    tally.clear()

    ended = await complete(h, *ids)

    assert [(one.interaction_id, one.is_duplicate) for one in ended] == [(id_, False) for id_ in ids]
    assert await spent(tally, SHORT) == [FIND, SHORT]
    assert (await h.drain()).total == number


async def test_a_completion_stores_its_actor_and_names_the_instance_it_wakes(h: Harness, tally: Tally) -> None:
    expense, interaction = await asked(h, Expense)
    await eventually(lambda: NOTICE in tally.sent)  # of its start
    tally.clear()

    done = await h.engine.complete(interaction=interaction.id, reply=YES, actor="bob")
    await eventually(lambda: NOTICE in tally.sent)
    await h.drain()

    assert (done.instance_id, done.machine, done.step) == (expense.id, "Expense", "start")
    await h.assert_done(expense, {"status": "completed", "approved": True, "actor": "bob", "type": "Decision"})


async def test_a_refused_completion_costs_one_more_statement_but_not_the_next(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_path_backoff, "FIRST_PAUSE", 60.0)
    [id_] = await asked_by(h, Expense, {})
    await complete(h, id_)

    async with h.another_engine() as elsewhere:
        tally = Tally(elsewhere._opened)
        await tally.attach()
        with pytest.raises(CompletionConflict):
            await elsewhere.complete(interaction=id_, reply={"approved": False})
        first = await spent(tally, ALONE)
        tally.clear()
        again = await elsewhere.complete(interaction=id_, reply=YES)
        second = await spent(tally, ALONE)

    assert again.is_duplicate
    assert (first, second) == ([FIND, SHORT, ALONE], [FIND, ALONE])


async def test_an_invalid_or_token_completion_skips_the_fast_path(h: Harness, tally: Tally) -> None:
    [plain] = await asked_by(h, Expense, {})
    token = await h.engine.interactions.token(plain)
    tally.clear()

    with pytest.raises(InvalidReply):
        await h.engine.complete(interaction=plain, reply={"approved": "perhaps"})
    wrong = await spent(tally, ALONE)
    tally.clear()
    await h.engine.complete(token=token, reply=YES)

    assert wrong == [ALONE], "it was read for its token, and is known for one answer"
    assert await spent(tally, ALONE) == [FIND, ALONE]


async def test_a_reply_of_a_type_unknown_here_is_checked_in_the_database(h: Harness) -> None:
    [id_] = await asked_by(h, Expense, {})

    async with Engine(h.url) as stranger:
        tally = Tally(stranger._opened)
        await tally.attach()
        with pytest.raises(InvalidReply):
            await stranger.complete(interaction=id_, reply={"approved": "perhaps"})

        assert await spent(tally, ALONE) == [FIND, ALONE]


async def test_a_unit_of_many_interactions_uses_the_fast_path_too(h: Harness, tally: Tally) -> None:
    first, *rest = await asked_by(h, Batch, {"items": [1, 2, 3, 4]})
    tally.clear()

    await complete(h, first, reply=1)
    once = await spent(tally, SHORT)
    tally.clear()
    await complete(h, *rest, reply=1)

    assert once == await spent(tally, SHORT) == [FIND, SHORT]
    assert (await h.drain()).total == 1


@pytest.mark.parametrize(("moment", "second"), [(60.0, [FIND, ALONE]), (0.0, [FIND, SHORT, ALONE])])
async def test_a_unit_with_more_to_ask_uses_the_full_path_for_a_moment(
    h: Harness, tally: Tally, monkeypatch: pytest.MonkeyPatch, moment: float, second: list[str]
) -> None:
    monkeypatch.setattr(fast_path_backoff, "FIRST_PAUSE", moment)
    ids = await asked_by(h, Batch, {"items": [1, 2, 3, 4], "window": 2})
    sent = []
    for id_ in ids[:2]:
        tally.clear()
        await complete(h, id_, reply=1)
        sent.append(await spent(tally, ALONE))

    assert sent == [[FIND, SHORT, ALONE], second]
    await complete(h, *ids[2:], reply=1)
    assert (await h.drain()).total == 1


async def test_the_number_of_units_on_the_full_path_is_bounded(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_path_backoff, "MOST_REMEMBERED", 2)
    ids = await asked_by(h, Expense, {}, 7)
    await complete(h, *ids)

    for id_ in ids:
        await complete(h, id_)

    assert 0 < len(h.engine._client.completing._paths.backoff) <= 3


async def test_fast_and_full_completions_of_one_batch_get_their_own_results(h: Harness, tally: Tally) -> None:
    plain = await asked_by(h, Expense, {}, 3)
    items = [id_ for id_ in await asked_by(h, Batch, {"items": [1, 2, 3], "window": 2}) if id_ not in plain][:2]
    await complete(h, plain[0])
    tally.clear()

    ended = await asyncio.gather(complete(h, *plain), complete(h, *items, reply=1))

    assert [one.is_duplicate for group in ended for one in group] == [True, False, False, False, False]
    assert await spent(tally, "COMMIT") == [FIND, SHORT, *LONG]
    assert (await h.drain()).total == 3


async def test_a_completion_that_postgres_refuses_does_not_undo_its_neighbours(h: Harness) -> None:
    """The fast path has committed by then: its callers get a success, not a duplicate."""
    plain = await asked_by(h, Expense, {}, 2)
    items = [id_ for id_ in await asked_by(h, Batch, {"items": [1, 2]}) if id_ not in plain]
    unwanted = f"check (id <> '{items[0]}' or reply is null)"
    await h.sql(f"alter table stepwell.interactions add constraint unwanted {unwanted}")

    try:
        taken, others = await asyncio.gather(complete(h, *plain), complete(h, *items, reply=1))
    finally:
        await h.sql("alter table stepwell.interactions drop constraint unwanted")

    assert [one.is_duplicate for one in taken] == [False, False]
    assert isinstance(others[0], Refusal)
    assert not others[1].is_duplicate
    assert [row["status"] for row in await interaction_rows(h, others[1].instance_id)] == ["dispatched", "completed"]


@pytest.mark.parametrize("part", ["request", "answer"])
async def test_accepted_completions_are_confirmed_even_if_others_are_in_doubt(h: Harness, part: Part) -> None:
    """The connection is lost after the fast path and before the full one: the second completion is in doubt."""
    [plain] = await asked_by(h, Expense, {"amount": 3})
    item, _ = [id_ for id_ in await asked_by(h, Batch, {"items": [1, 2], "window": 1}) if id_ != plain]
    async with proxy_to(h.url) as proxy, Engine(proxy.url, machines=[Expense, Batch]) as engine:
        loss = proxy.lose(part, statement(ALONE))
        given = (engine.complete(interaction=id_, reply=reply) for id_, reply in ((plain, YES), (item, 1)))
        taken, unknown = await asyncio.gather(*given, return_exceptions=True)

    assert loss.happened.is_set()
    assert isinstance(taken, Completion)
    assert not taken.is_duplicate
    assert isinstance(unknown, Outage)
