"""A step receives a reply as the type that was asked for, whether it came through Python or SQL."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from stepwell import Ask, Context, Done, Hold, Machine, Outcome, step
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.features.interactions import kinds
from tests.features.interactions.askers import asker
from tests.features.interactions.kinds import ID, NOON, TYPED, Payment, Picky, Score
from tests.features.interactions.looks import SqlCompleter, asked, interaction_rows, pending


class Holder(Machine):
    """Has the type of its replies inside, and asks with typed objects."""

    @dataclass
    class Answer:
        paid: bool

    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        request = {"payment": Payment(ID, Decimal("1.5"), NOON), "scores": [Score("a", 1)]}
        return Ask("manual", request, reply=list[self.Answer], then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Outcome:
        return Done([given.paid for given in ctx.reply.value])


class Patient(Machine):
    """Asks for a number that its type is picky about, and asks again if it does not like it."""

    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        return Ask("manual", "which number?", reply=Picky, then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Outcome:
        return Done(ctx.reply.value.number)

    async def handle(self, error: Exception, ctx: Context[Any]) -> Outcome:
        return Ask("manual", f"again, please: {error}", reply=Picky, then=self.end)


def machines() -> dict[str, Any]:
    """A machine per type."""
    return {how: asker(reply=kind, name=f"Asks {how}") for how, (kind, _, _) in TYPED.items()}


async def ask_all(h: Harness, asking: dict[str, Any]) -> dict[str, str]:
    """Let all of them ask; returns the ids of their interactions."""
    started = await h.engine.start_many([machine.child() for machine in asking.values()])
    await h.drain(concurrency=10)
    by_instance = {q.instance_id: q.id for q in await pending(h)}
    return {how: by_instance[one.id] for how, one in zip(asking, started, strict=True)}


def check(asking: dict[str, Any], ids: dict[str, str]) -> None:
    """Each step has seen its typed value, of the exact type, and the interaction of it."""
    for how, (_, _, expected) in TYPED.items():
        reply = asking[how].seen.replies.pop()
        assert (reply.status, reply.value, type(reply.value)) == ("completed", expected, type(expected)), how
        assert reply.is_completed
        assert reply.completed_at is not None
        assert (reply.interaction_id, reply.error) == (ids[how], None), how


async def test_a_reply_from_python_is_typed(make_harness: MakeHarness) -> None:
    """Scenarios 14, 58; Gap 7: as plain JSON, and as an object of the type itself."""
    asking = machines()
    h = await make_harness(asking.values())

    plain = await ask_all(h, asking)
    for how, id_ in plain.items():
        await h.engine.complete(interaction=id_, reply=TYPED[how][1])
    await h.drain(concurrency=10)
    check(asking, plain)

    typed = await ask_all(h, asking)
    for how, id_ in typed.items():
        await h.engine.complete(interaction=id_, reply=TYPED[how][2] if how != "set" else [1, 2])
    await h.drain(concurrency=10)
    check(asking, typed)


async def test_a_reply_from_sql_is_typed(make_harness: MakeHarness) -> None:
    """Scenarios 14, 58; Gap 7: SQL checks it by the schema, Python reads it as the type."""
    asking = machines()
    h = await make_harness(asking.values())
    ids = await ask_all(h, asking)

    for how, id_ in ids.items():
        assert not await SqlCompleter(h).complete(interaction=id_, reply=TYPED[how][1]), how
        assert await SqlCompleter(h).complete(interaction=id_, reply=TYPED[how][1]), how

    await h.drain(concurrency=10)
    check(asking, ids)


async def test_an_interaction_shows_its_reply_type(make_harness: MakeHarness) -> None:
    """A form, or the external system, can be made from it: a name for people, and JSON Schema."""
    asking = machines()
    h = await make_harness(asking.values())

    shown = {how: await h.engine.interactions.get(id_) for how, id_ in (await ask_all(h, asking)).items()}

    names = {how: interaction.reply_type for how, interaction in shown.items()}
    assert (names["dataclass"], names["list"], names["union"]) == ("Score", "list[Score]", "Approved | Declined")
    assert (names["anything"], names["none"]) == ("anything", "anything")
    assert shown["anything"].reply_schema is None
    assert shown["flag"].reply_schema == {"type": "boolean"}
    assert "properties" in json.dumps(shown["model"].reply_schema)


async def test_types_inside_a_machine_and_object_requests_are_supported(make_harness: MakeHarness) -> None:
    """Scenario 50, 58: a request of typed objects is asked as JSON; the reply's type may be the machine's own."""
    h = await make_harness([Holder])
    holder, interaction = await asked(h, Holder)

    await h.engine.complete(interaction=interaction.id, reply=[{"paid": True}, Holder.Answer(False)])
    await h.drain()

    assert interaction.request == {
        "payment": {"id": str(ID), "amount": "1.5", "paid_at": "2026-01-01T12:00:00Z", "tags": []},
        "scores": [{"name": "a", "points": 1}],
    }
    await h.assert_done(holder, [True, False])


async def test_a_reply_of_a_type_missing_in_this_process_holds_the_instance(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 9a: the instance waits with the reason; a process that has the type runs it, with the same reply."""
    machine = asker(reply=list[Score], name="Scores")
    h = await make_harness([machine])
    scores, interaction = await asked(h, machine)
    await SqlCompleter(h).complete(interaction=interaction.id, reply=[{"name": "a"}])
    with monkeypatch.context() as without:
        without.delattr(kinds, "Score")

        await h.drain()

        waiting = await scores.get()
        assert waiting.hold is Hold.UNFIT
        assert "tests.features.interactions.kinds:Score" in str(waiting.hold_reason)

    await h.engine.retry(scores.id)
    await h.drain()
    await h.assert_done(scores, "completed")
    assert machine.seen.replies[-1].value == [Score("a")]


async def test_a_reply_that_only_the_type_refuses_goes_to_handle(make_harness: MakeHarness) -> None:
    """Scenario 65, Gap 10: Python refuses it; SQL accepts it, and `handle` asks again."""
    h = await make_harness([Patient])
    patient, first = await asked(h, Patient)

    with pytest.raises(Exception, match="odd numbers are not allowed"):
        await h.engine.complete(interaction=first.id, reply={"number": 3})
    await SqlCompleter(h).complete(interaction=first.id, reply={"number": 3})
    await h.drain()

    [again] = await pending(h)
    assert "odd numbers are not allowed" in again.request
    await SqlCompleter(h).complete(interaction=again.id, reply={"number": 4})
    await h.drain()
    await h.assert_done(patient, 4)
    assert [row["status"] for row in await interaction_rows(h, patient.id)] == ["completed", "completed"]
