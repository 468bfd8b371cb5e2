"""A completion is accepted once, from Python and from SQL alike; a refusal says why, and changes nothing."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from stepwell import InstanceFailed
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.features.interactions.askers import asker
from tests.features.interactions.looks import (
    PythonCompleter,
    Refused,
    SqlCompleter,
    asked,
    interaction_rows,
    pending,
    snapshot,
)
from tests.features.interactions.machines import Batch, Expense

YES: dict[str, Any] = {"approved": True}


async def refused(h: Harness, completer: PythonCompleter, reason: str, **given: Any) -> Refused:
    """The refusal of a completion, which has changed nothing."""
    before = await snapshot(h)
    with pytest.raises(Refused) as caught:
        await completer.complete(**{"reply": YES, **given})
    assert caught.value.reason == reason, caught.value.said
    assert await snapshot(h) == before
    return caught.value


async def test_a_completion_by_id_wakes_the_instance_with_its_reply(h: Harness, completer: PythonCompleter) -> None:
    """Scenarios 13, 14: one unit, one interaction, parked at it; completed by its id it resumes with the payload."""
    expense, interaction = await asked(h, Expense, {"amount": 3})
    parked = await expense.get()
    [row] = await interaction_rows(h, expense.id)

    is_duplicate = await completer.complete(interaction=interaction.id, reply=YES, actor="bob")

    assert (parked.status, parked.step, row["unit_status"], row["opened"]) == ("awaiting_external", "decided",
                                                                               "waiting", 1)  # fmt: skip
    assert not is_duplicate
    await h.drain()
    expected = {"status": "completed", "approved": True, "actor": "bob", "type": "Decision"}
    await h.assert_done(expense, expected)
    assert (await interaction_rows(h, expense.id))[0]["unit_status"] == "completed"


async def test_a_completion_by_correlation_wakes_the_instance_with_its_reply(
    h: Harness, completer: PythonCompleter
) -> None:
    """Scenario 15."""
    expense, interaction = await asked(h, Expense)

    await completer.complete(correlation=interaction.correlation_id, reply=YES)

    await h.drain()
    await h.assert_done(expense)


async def test_a_repeated_completion_is_a_duplicate_and_runs_nothing_again(
    h: Harness, completer: PythonCompleter
) -> None:
    """Scenario 17; Gap 11: a repetition is a duplicate, even after the instance continued, and by another actor."""
    expense, interaction = await asked(h, Expense)
    await completer.complete(interaction=interaction.id, reply=YES, actor="bob")

    at_once = await completer.complete(interaction=interaction.id, reply=YES)
    await h.drain()
    later = await completer.complete(correlation=interaction.correlation_id, reply=YES, actor="eve")

    assert (at_once, later) == (True, True)
    assert (await h.drain()).total == 0
    await h.assert_done(expense, {"status": "completed", "approved": True, "actor": "bob", "type": "Decision"})


async def test_a_completion_with_another_reply_is_a_conflict(h: Harness, completer: PythonCompleter) -> None:
    """Scenario 19, Gap 11: the first payload stands, and the second caller gets a conflict."""
    _, interaction = await asked(h, Expense)
    await completer.complete(interaction=interaction.id, reply=YES)

    await refused(h, completer, "conflict", interaction=interaction.id, reply={"approved": False})


async def test_one_of_two_concurrent_completions_wins(h: Harness, completer: PythonCompleter) -> None:
    """Scenario 20: exactly one is the first; a different reply is refused; the stored one is the winner's."""
    expense, interaction = await asked(h, Expense)

    async def complete(note: str) -> str:
        try:
            await completer.complete(interaction=interaction.id, reply={"approved": True, "note": note})
        except Refused as refusal:
            return refusal.reason
        return note

    ended = await asyncio.gather(*(complete(f"by {n}") for n in range(6)))

    [winner] = [end for end in ended if end != "conflict"]
    assert ended.count("conflict") == 5
    assert f'"note": "{winner}"' in (await interaction_rows(h, expense.id))[0]["reply"]
    assert (await h.drain()).total == 1


async def test_a_completion_of_an_unknown_interaction_is_refused(h: Harness, completer: PythonCompleter) -> None:
    """Scenario 59: an unknown id, an unknown correlation; and one used as the other."""
    _, interaction = await asked(h, Expense)

    await refused(h, completer, "unknown", interaction=str(uuid4()))
    await refused(h, completer, "unknown", correlation=str(uuid4()))
    await refused(h, completer, "unknown", interaction=interaction.correlation_id)
    await refused(h, completer, "unknown", correlation=interaction.id)


async def test_an_interaction_of_another_tenant_is_unknown(h: Harness, completer: PythonCompleter) -> None:
    """Scenario 59: by id and by correlation, in both directions; the tenant's own completion is accepted."""
    _, theirs = await asked(h, Expense, tenant="acme")
    _, ours = await asked(h, Expense)

    await refused(h, completer, "unknown", interaction=theirs.id)
    await refused(h, completer, "unknown", correlation=theirs.correlation_id)
    await refused(h, completer, "unknown", interaction=ours.id, tenant="acme")
    await refused(h, completer, "unknown", interaction=theirs.id, tenant="acm")

    assert not await completer.complete(interaction=theirs.id, tenant="acme", reply=YES)


async def test_a_missing_tenant_is_the_empty_one_and_a_blank_one_owns_nothing(
    h: Harness, completer: PythonCompleter
) -> None:
    """Scenario 60: an interaction without a tenant is completed with "", or with none; a blank names another tenant."""
    _, ours = await asked(h, Expense)
    _, blanks = await asked(h, Expense, tenant=" ")

    await refused(h, completer, "unknown", interaction=ours.id, tenant=" ")
    await refused(h, completer, "unknown", correlation=ours.correlation_id, tenant=" ")
    await refused(h, completer, "unknown", interaction=blanks.id, tenant="")

    assert ours.tenant == ""
    assert not await completer.complete(interaction=ours.id, tenant="", reply=YES)
    assert await completer.complete(interaction=ours.id, reply=YES)


async def test_a_completion_names_exactly_one_interaction(h: Harness, completer: PythonCompleter) -> None:
    """Scenario 60: no name is an error of the caller, and so are names that no row can have.

    An id and a correlation, as providers echo them, must be those of one interaction.
    """
    _, interaction = await asked(h, Expense)
    _, other = await asked(h, Expense)

    none = await refused(h, completer, "input")
    actor = await refused(h, completer, "input", interaction=interaction.id, actor="")
    tenant = await refused(h, completer, "input", interaction=interaction.id, tenant="x" * 201)
    await refused(h, completer, "unknown", interaction=interaction.id, correlation=other.correlation_id)

    assert [r.field for r in (none, actor, tenant)] == ["interaction", "actor", "tenant"]
    assert not await completer.complete(interaction=interaction.id, correlation=interaction.correlation_id, reply=YES)


async def test_an_invalid_id_is_refused_with_its_field(h: Harness) -> None:
    """Scenario 60: SQL has a type for it; Python says which field."""
    completer = PythonCompleter(h)

    for wrong in ("", "17", "not-a-uuid", 17, b"x"):
        assert (await refused(h, completer, "input", interaction=wrong)).field == "interaction"
        assert (await refused(h, completer, "input", correlation=wrong)).field == "correlation"


async def test_a_completion_of_a_closed_interaction_is_refused(h: Harness, completer: PythonCompleter) -> None:
    """Scenario 63: cancelled or timed out, it is closed; the refusal says which."""
    cancelled, one = await asked(h, Expense)
    await h.engine.cancel(cancelled.id)
    _, other = await asked(h, Expense, {"seconds": 60})
    await h.advance(timedelta(minutes=2))
    await h.drain()

    assert "cancelled" in (await refused(h, completer, "closed", interaction=one.id)).said
    assert "timed out" in (await refused(h, completer, "closed", interaction=other.id)).said


async def test_a_late_completion_is_refused_and_the_instance_still_times_out(
    h: Harness, completer: PythonCompleter
) -> None:
    """Scenario 73, Gap 1: the deadline has passed and no sweep has run yet; the parent still ends by its timeout."""
    expense, interaction = await asked(h, Expense, {"seconds": 60, "on_timeout": "fail"})
    await h.advance(timedelta(seconds=61))

    await refused(h, completer, "late", interaction=interaction.id)

    await h.drain()
    await h.assert_failed(expense, "was not completed in time")
    with pytest.raises(InstanceFailed, match="AwaitTimeout"):
        await expense.result()


async def test_a_reply_of_the_wrong_type_leaves_the_interaction_open(h: Harness, completer: PythonCompleter) -> None:
    """Scenario 65, Gap 10: refused at once, and a valid reply is accepted after it."""
    expense, interaction = await asked(h, Expense)
    wrong: list[Any] = [
        {}, {"approved": "yes"}, {"approved": 1}, {"approved": None}, [True], "yes", None, {**YES, "note": 3},
    ]  # fmt: skip

    said = [(await refused(h, completer, "type", interaction=interaction.id, reply=reply)).said for reply in wrong]

    assert "required field 'approved' is missing" in said[0]
    assert all("reply.approved: " in words for words in said[1:4])
    assert "reply.note: " in said[7]
    assert [q.id for q in await pending(h)] == [interaction.id]
    assert not await completer.complete(interaction=interaction.id, reply=YES)
    await h.drain()
    await h.assert_done(expense)


async def test_a_reply_that_is_too_large_is_refused_with_the_limit(h: Harness, completer: PythonCompleter) -> None:
    """The size is checked in Python before the lookup; SQL checks no reply to an unknown interaction."""
    _, interaction = await asked(h, Expense)
    large = {"approved": True, "note": "x" * 3_000_000}

    said = (await refused(h, completer, "size", interaction=interaction.id, reply=large)).said
    sooner = "size" if isinstance(completer, PythonCompleter) else "unknown"
    await refused(h, completer, sooner, interaction=str(uuid4()), reply=large)

    assert "max_payload" in said


async def test_null_is_a_reply_if_the_type_accepts_anything(make_harness: MakeHarness) -> None:
    """Section 4: null is a payload of its own: stored, read as None, and repeated as a duplicate."""
    anything = asker(request=None)
    h = await make_harness([anything])
    for completer in (PythonCompleter(h), SqlCompleter(h)):
        handle, interaction = await asked(h, anything)
        assert interaction.request is None

        first = await completer.complete(interaction=interaction.id, reply=None)
        again = await completer.complete(interaction=interaction.id, reply=None)

        assert (first, again) == (False, True)
        await h.drain()
        await h.assert_done(handle, "completed")
        assert anything.seen.replies[-1].value is None


async def test_concurrent_completions_are_each_judged_on_their_own(h: Harness) -> None:
    """Concurrent completions are accepted together; a refused one does not undo the others."""
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


async def test_python_and_sql_check_a_completion_in_the_same_order(h: Harness, completer: PythonCompleter) -> None:
    """Section 4: found, token, completed before, closed, late, type: the first that holds is reported.

    Size comes first in Python, in the caller's own process. SQL, where it costs the server, measures a reply only after
    its token was verified.
    """
    _, guarded = await asked(h, Expense, {"token": True})
    _, answered = await asked(h, Expense, {"seconds": 60})
    await completer.complete(interaction=answered.id, reply=YES)
    _, late = await asked(h, Expense, {"seconds": 60})
    await h.advance(timedelta(seconds=90))
    wrong = ("nonsense", " ", "sw1.gone.W10.abc")

    for token in wrong:
        await refused(h, completer, "unknown", interaction=str(uuid4()), token=token)
        await refused(h, completer, "unknown", correlation=str(uuid4()), token=token)
        await refused(h, completer, "token", interaction=guarded.id, token=token, reply="wrong")
        await refused(h, completer, "token", token=token, reply="wrong")
    large = "x" * 3_000_000
    sooner = ("size", "size") if isinstance(completer, PythonCompleter) else ("token", "late")
    await refused(h, completer, sooner[0], interaction=guarded.id, token=wrong[0], reply=large)
    await refused(h, completer, sooner[1], interaction=late.id, reply=large)
    await refused(h, completer, "size", interaction=answered.id, reply=large)
    await refused(h, completer, "input", interaction=str(uuid4()), token=wrong[0], tenant="x" * 201)
    await refused(h, completer, "token", interaction=guarded.id, reply="wrong")
    await refused(h, completer, "conflict", interaction=answered.id, reply="wrong")
    assert await completer.complete(interaction=answered.id, reply=YES)  # after its deadline, still a duplicate
    await refused(h, completer, "late", interaction=late.id, reply="wrong")
