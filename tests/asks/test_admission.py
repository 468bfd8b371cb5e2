"""Answers are admitted once, from Python and from SQL alike; what is refused says why, and changes nothing."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from stepwell import InstanceFailed
from stepwell.testing import Harness
from tests.asks.askers import asker
from tests.asks.looks import PythonDoor, Refused, SqlDoor, asked, pending, questions, snapshot
from tests.asks.machines import Batch, Expense
from tests.conftest import MakeHarness

YES: dict[str, Any] = {"approved": True}


async def refused(h: Harness, door: PythonDoor, reason: str, **answer: Any) -> Refused:
    """The refusal of an answer, which has changed nothing."""
    before = await snapshot(h)
    with pytest.raises(Refused) as caught:
        await door.complete(**{"reply": YES, **answer})
    assert caught.value.reason == reason, caught.value.said
    assert await snapshot(h) == before
    return caught.value


async def test_an_answer_by_id_lets_the_instance_go_on_with_it(h: Harness, door: PythonDoor) -> None:
    """Scenarios 13, 14: one unit, one question, parked at it; answered by its id it resumes with the payload."""
    expense, question = await asked(h, Expense, {"amount": 3})
    parked = await expense.get()
    [row] = await questions(h, expense.id)

    is_duplicate = await door.complete(interaction=question.id, reply=YES, actor="bob")

    assert (parked.status, parked.step, row["unit_status"], row["opened"]) == ("awaiting_external", "decided",
                                                                               "waiting", 1)  # fmt: skip
    assert not is_duplicate
    await h.drain()
    expected = {"status": "completed", "approved": True, "actor": "bob", "type": "Decision"}
    await h.assert_done(expense, expected)
    assert (await questions(h, expense.id))[0]["unit_status"] == "completed"


async def test_an_answer_by_correlation_does_the_same(h: Harness, door: PythonDoor) -> None:
    """Scenario 15."""
    expense, question = await asked(h, Expense)

    await door.complete(correlation=question.correlation_id, reply=YES)

    await h.drain()
    await h.assert_done(expense)


async def test_the_same_answer_again_is_a_duplicate_and_runs_nothing_again(h: Harness, door: PythonDoor) -> None:
    """Scenario 17; Gap 11: whoever repeats is told so, also after the instance has moved on, and by another actor."""
    expense, question = await asked(h, Expense)
    await door.complete(interaction=question.id, reply=YES, actor="bob")

    at_once = await door.complete(interaction=question.id, reply=YES)
    await h.drain()
    later = await door.complete(correlation=question.correlation_id, reply=YES, actor="eve")

    assert (at_once, later) == (True, True)
    assert (await h.drain()).total == 0
    await h.assert_done(expense, {"status": "completed", "approved": True, "actor": "bob", "type": "Decision"})


async def test_another_answer_to_the_same_question_is_a_conflict(h: Harness, door: PythonDoor) -> None:
    """Scenario 19, Gap 11: the first payload stands, and the second caller is told."""
    _, question = await asked(h, Expense)
    await door.complete(interaction=question.id, reply=YES)

    await refused(h, door, "conflict", interaction=question.id, reply={"approved": False})


async def test_of_two_at_once_one_wins(h: Harness, door: PythonDoor) -> None:
    """Scenario 20: exactly one is the first; who says something else is refused; what is stored is the winner's."""
    expense, question = await asked(h, Expense)

    async def answer(note: str) -> str:
        try:
            await door.complete(interaction=question.id, reply={"approved": True, "note": note})
        except Refused as refusal:
            return refusal.reason
        return note

    ended = await asyncio.gather(*(answer(f"by {n}") for n in range(6)))

    [winner] = [end for end in ended if end != "conflict"]
    assert ended.count("conflict") == 5
    assert f'"note": "{winner}"' in (await questions(h, expense.id))[0]["reply"]
    assert (await h.drain()).total == 1


async def test_what_nobody_asked_is_unknown(h: Harness, door: PythonDoor) -> None:
    """Scenario 59: an unknown id, an unknown correlation; and one that stands for the other."""
    _, question = await asked(h, Expense)

    await refused(h, door, "unknown", interaction=str(uuid4()))
    await refused(h, door, "unknown", correlation=str(uuid4()))
    await refused(h, door, "unknown", interaction=question.correlation_id)
    await refused(h, door, "unknown", correlation=question.id)


async def test_another_tenants_question_is_unknown(h: Harness, door: PythonDoor) -> None:
    """Scenario 59: by id and by correlation, in both directions; the tenant's own answer is taken."""
    _, theirs = await asked(h, Expense, tenant="acme")
    _, ours = await asked(h, Expense)

    await refused(h, door, "unknown", interaction=theirs.id)
    await refused(h, door, "unknown", correlation=theirs.correlation_id)
    await refused(h, door, "unknown", interaction=ours.id, tenant="acme")
    await refused(h, door, "unknown", interaction=theirs.id, tenant="acm")

    assert not await door.complete(interaction=theirs.id, tenant="acme", reply=YES)


async def test_no_tenant_is_the_empty_one_and_a_blank_one_is_nobodys(h: Harness, door: PythonDoor) -> None:
    """Scenario 60: who asks without a tenant is answered with "", or without a word; a blank names another tenant."""
    _, ours = await asked(h, Expense)
    _, blanks = await asked(h, Expense, tenant=" ")

    await refused(h, door, "unknown", interaction=ours.id, tenant=" ")
    await refused(h, door, "unknown", correlation=ours.correlation_id, tenant=" ")
    await refused(h, door, "unknown", interaction=blanks.id, tenant="")

    assert ours.tenant == ""
    assert not await door.complete(interaction=ours.id, tenant="", reply=YES)
    assert await door.complete(interaction=ours.id, reply=YES)


async def test_an_answer_names_one_question(h: Harness, door: PythonDoor) -> None:
    """Scenario 60: none is an error of the caller, and so are names that no row can have. An id and a correlation, as
    providers echo them, must be those of one question."""
    _, question = await asked(h, Expense)
    _, other = await asked(h, Expense)

    none = await refused(h, door, "input")
    actor = await refused(h, door, "input", interaction=question.id, actor="")
    tenant = await refused(h, door, "input", interaction=question.id, tenant="x" * 201)
    await refused(h, door, "unknown", interaction=question.id, correlation=other.correlation_id)

    assert [r.field for r in (none, actor, tenant)] == ["interaction", "actor", "tenant"]
    assert not await door.complete(interaction=question.id, correlation=question.correlation_id, reply=YES)


async def test_an_id_that_is_none_is_refused_by_its_field(h: Harness) -> None:
    """Scenario 60: SQL has a type for it; Python says which field."""
    door = PythonDoor(h)

    for wrong in ("", "17", "not-a-uuid", 17, b"x"):
        assert (await refused(h, door, "input", interaction=wrong)).field == "interaction"
        assert (await refused(h, door, "input", correlation=wrong)).field == "correlation"


async def test_a_closed_question_is_refused(h: Harness, door: PythonDoor) -> None:
    """Scenario 63: cancelled or timed out, it is closed; the refusal says which."""
    cancelled, one = await asked(h, Expense)
    await h.engine.cancel(cancelled.id)
    _, other = await asked(h, Expense, {"seconds": 60})
    await h.advance(timedelta(minutes=2))
    await h.drain()

    assert "cancelled" in (await refused(h, door, "closed", interaction=one.id)).said
    assert "timed out" in (await refused(h, door, "closed", interaction=other.id)).said


async def test_a_late_answer_is_refused_and_the_instance_still_times_out(h: Harness, door: PythonDoor) -> None:
    """Scenario 73, Gap 1: the deadline has passed and nobody has swept yet; the parent still ends by its timeout."""
    expense, question = await asked(h, Expense, {"seconds": 60, "on_timeout": "fail"})
    await h.advance(timedelta(seconds=61))

    await refused(h, door, "late", interaction=question.id)

    await h.drain()
    await h.assert_failed(expense, "was not answered in time")
    with pytest.raises(InstanceFailed, match="AwaitTimeout"):
        await expense.result()


async def test_a_reply_of_the_wrong_type_leaves_the_question_open(h: Harness, door: PythonDoor) -> None:
    """Scenario 65, Gap 10: refused where it comes in, and a right one is taken after it."""
    expense, question = await asked(h, Expense)
    wrong: list[Any] = [
        {}, {"approved": "yes"}, {"approved": 1}, {"approved": None}, [True], "yes", None, {**YES, "note": 3},
    ]  # fmt: skip

    said = [(await refused(h, door, "type", interaction=question.id, reply=reply)).said for reply in wrong]

    assert "required field 'approved' is missing" in said[0]
    assert all("reply.approved: " in words for words in said[1:4])
    assert "reply.note: " in said[7]
    assert [q.id for q in await pending(h)] == [question.id]
    assert not await door.complete(interaction=question.id, reply=YES)
    await h.drain()
    await h.assert_done(expense)


async def test_a_reply_that_is_too_large_is_refused_with_the_limit(h: Harness, door: PythonDoor) -> None:
    """Admission, first check: size, before anybody looks for the question."""
    _, question = await asked(h, Expense)
    large = {"approved": True, "note": "x" * 3_000_000}

    said = (await refused(h, door, "size", interaction=question.id, reply=large)).said
    await refused(h, door, "size", interaction=str(uuid4()), reply=large)

    assert "max_payload" in said


async def test_null_is_an_answer_where_anything_is(make_harness: MakeHarness) -> None:
    """Section 4: null is a payload of its own: stored, read as None, and repeated as a duplicate."""
    anything = asker(request=None)
    h = await make_harness([anything])
    for door in (PythonDoor(h), SqlDoor(h)):
        handle, question = await asked(h, anything)
        assert question.request is None

        first = await door.complete(interaction=question.id, reply=None)
        again = await door.complete(interaction=question.id, reply=None)

        assert (first, again) == (False, True)
        await h.drain()
        await h.assert_done(handle, "completed")
        assert anything.seen.replies[-1].value is None


async def test_answers_of_one_moment_are_judged_each_for_itself(h: Harness) -> None:
    """Answers that come together are admitted together; one that is refused takes none of the others with it."""
    batch = await h.engine.start(Batch, {"items": [0, 1, 2, 3]})
    await h.drain()
    ids = [q.id for q in await pending(h)]

    given = [(ids[0], 10), (ids[1], "wrong"), (str(uuid4()), 1), (ids[2], 12), (ids[0], 10), (ids[0], 11), (ids[3], 13)]
    ended = await asyncio.gather(
        *(h.engine.complete(interaction=id_, reply=reply) for id_, reply in given), return_exceptions=True
    )

    words = [getattr(end, "reason", None) or f"{end.is_duplicate}" for end in ended]  # type: ignore[union-attr]
    assert words == ["False", "type", "unknown", "False", "True", "conflict", "False"]
    await h.engine.complete(interaction=ids[1], reply=11)
    await h.drain()
    await h.assert_done(batch, [[n, "completed", 10 + n] for n in range(4)])


async def test_the_order_of_the_checks_is_the_same_at_both_doors(h: Harness, door: PythonDoor) -> None:
    """Section 4: size, found, token, answered before, closed, late, type: the first that holds is what is said."""
    _, guarded = await asked(h, Expense, {"token": True})
    _, answered = await asked(h, Expense, {"seconds": 60})
    await door.complete(interaction=answered.id, reply=YES)
    _, late = await asked(h, Expense, {"seconds": 60})
    await h.advance(timedelta(seconds=90))
    wrong = ("nonsense", " ", "sw1.gone.W10.abc")

    for token in wrong:
        await refused(h, door, "unknown", interaction=str(uuid4()), token=token)
        await refused(h, door, "unknown", correlation=str(uuid4()), token=token)
        await refused(h, door, "token", interaction=guarded.id, token=token, reply="wrong")
        await refused(h, door, "token", token=token, reply="wrong")
    await refused(h, door, "size", interaction=guarded.id, token=wrong[0], reply="x" * 3_000_000)
    await refused(h, door, "input", interaction=str(uuid4()), token=wrong[0], tenant="x" * 201)
    await refused(h, door, "token", interaction=guarded.id, reply="wrong")
    await refused(h, door, "conflict", interaction=answered.id, reply="wrong")
    assert await door.complete(interaction=answered.id, reply=YES)  # after its deadline, still a duplicate
    await refused(h, door, "late", interaction=late.id, reply="wrong")
