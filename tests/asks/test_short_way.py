"""Plain answers go a short way, one statement for all of a moment; what is anything more, or refused, goes the long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import Completion, Engine
from stepwell._core.faults import Outage, Refusal
from stepwell._runtime import detours
from stepwell._store.statements import statement
from stepwell.errors import CompletionConflict, InvalidReply
from stepwell.testing import Harness
from tests.asks.looks import asked, questions
from tests.asks.machines import Batch, Expense
from tests.store.tally import Tally
from tests.support.proxy import Part, proxy_to
from tests.support.waiting import eventually

YES: dict[str, Any] = {"approved": True}
FIND, SHORT, ALONE = "interactions/find", "interactions/answer_plain", "interactions/answer"
NOTICE = "notices/send"
LONG = ["BEGIN", "children/lock_parents", "interactions/admit", "units/settle", "COMMIT"]


@pytest.fixture
async def tally(h: Harness) -> Tally:
    made = Tally(h.engine._opened)
    await made.attach()
    return made


async def spent(tally: Tally, last: str) -> list[str]:
    """What answers have sent so far, up to their last statement."""
    await eventually(lambda: last in tally.sent)
    return [name for name in tally.sent if name != NOTICE]


async def asked_by(h: Harness, machine: Any, state: Any, number: int = 1) -> list[str]:
    """Ids of the questions of so many instances, not read by the engine: what it has read, it need not find."""
    await h.engine.start_many([(machine, state)] * number)
    await h.drain()
    return [row["id"] for row in await h.sql("select id::text from stepwell.interactions order by unit_id, item")]


async def complete(h: Harness, *ids: str, reply: Any = None) -> list[Any]:
    """Answer at one moment; completions and errors in the order of the questions."""
    answers = (h.engine.complete(interaction=id_, reply=YES if reply is None else reply) for id_ in ids)
    return await asyncio.gather(*answers, return_exceptions=True)


@pytest.mark.parametrize("number", [1, 50])
async def test_plain_answers_of_one_moment_are_two_statements(h: Harness, tally: Tally, number: int) -> None:
    ids = await asked_by(h, Expense, {"amount": 3}, number)
    tally.clear()

    ended = await complete(h, *ids)

    assert [(one.interaction_id, one.is_duplicate) for one in ended] == [(id_, False) for id_ in ids]
    assert await spent(tally, SHORT) == [FIND, SHORT]
    assert (await h.drain()).total == number


async def test_an_answer_is_stored_with_its_actor_and_tells_whom_it_lets_go_on(h: Harness, tally: Tally) -> None:
    expense, question = await asked(h, Expense)
    await eventually(lambda: NOTICE in tally.sent)  # of its start
    tally.clear()

    done = await h.engine.complete(interaction=question.id, reply=YES, actor="bob")
    await eventually(lambda: NOTICE in tally.sent)
    await h.drain()

    assert (done.instance_id, done.machine, done.step) == (expense.id, "Expense", "start")
    await h.assert_done(expense, {"status": "completed", "approved": True, "actor": "bob", "type": "Decision"})


async def test_an_answer_that_is_refused_costs_one_statement_more_and_the_next_one_does_not(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detours, "LONG_WAY", 60.0)
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


async def test_an_answer_of_the_wrong_type_or_with_a_token_does_not_try_the_short_way(h: Harness, tally: Tally) -> None:
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


async def test_an_answer_whose_type_only_the_database_knows_is_judged_there(h: Harness) -> None:
    [id_] = await asked_by(h, Expense, {})

    async with Engine(h.url) as stranger:
        tally = Tally(stranger._opened)
        await tally.attach()
        with pytest.raises(InvalidReply):
            await stranger.complete(interaction=id_, reply={"approved": "perhaps"})

        assert await spent(tally, ALONE) == [FIND, ALONE]


async def test_a_unit_of_many_questions_goes_the_short_way_too(h: Harness, tally: Tally) -> None:
    first, *rest = await asked_by(h, Batch, {"items": [1, 2, 3, 4]})
    tally.clear()

    await complete(h, first, reply=1)
    once = await spent(tally, SHORT)
    tally.clear()
    await complete(h, *rest, reply=1)

    assert once == await spent(tally, SHORT) == [FIND, SHORT]
    assert (await h.drain()).total == 1


@pytest.mark.parametrize(("moment", "second"), [(60.0, [FIND, ALONE]), (0.0, [FIND, SHORT, ALONE])])
async def test_a_unit_that_has_more_to_ask_goes_the_long_way_for_a_moment(
    h: Harness, tally: Tally, monkeypatch: pytest.MonkeyPatch, moment: float, second: list[str]
) -> None:
    monkeypatch.setattr(detours, "LONG_WAY", moment)
    ids = await asked_by(h, Batch, {"items": [1, 2, 3, 4], "window": 2})
    sent = []
    for id_ in ids[:2]:
        tally.clear()
        await complete(h, id_, reply=1)
        sent.append(await spent(tally, ALONE))

    assert sent == [[FIND, SHORT, ALONE], second]
    await complete(h, *ids[2:], reply=1)
    assert (await h.drain()).total == 1


async def test_units_that_go_the_long_way_are_forgotten_before_they_are_many(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(detours, "MOST_REMEMBERED", 2)
    ids = await asked_by(h, Expense, {}, 7)
    await complete(h, *ids)

    for id_ in ids:
        await complete(h, id_)

    assert 0 < len(h.engine._client.completing._detours) <= 3


async def test_plain_answers_beside_others_go_their_way_and_everybody_gets_his_own(h: Harness, tally: Tally) -> None:
    plain = await asked_by(h, Expense, {}, 3)
    items = [id_ for id_ in await asked_by(h, Batch, {"items": [1, 2, 3], "window": 2}) if id_ not in plain][:2]
    await complete(h, plain[0])
    tally.clear()

    ended = await asyncio.gather(complete(h, *plain), complete(h, *items, reply=1))

    assert [one.is_duplicate for group in ended for one in group] == [True, False, False, False, False]
    assert await spent(tally, "COMMIT") == [FIND, SHORT, *LONG]
    assert (await h.drain()).total == 3


async def test_an_answer_that_postgres_refuses_takes_nothing_back_from_its_neighbours(h: Harness) -> None:
    """Those on the short way are taken by then: they are told so, and not that they come a second time."""
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
    assert [row["status"] for row in await questions(h, others[1].instance_id)] == ["dispatched", "completed"]


@pytest.mark.parametrize("part", ["request", "answer"])
async def test_of_answers_of_one_moment_those_that_are_taken_are_told_so_whatever_becomes_of_the_others(
    h: Harness, part: Part
) -> None:
    """The connection is lost after the short way and before the long one: nobody knows of the second answer."""
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
