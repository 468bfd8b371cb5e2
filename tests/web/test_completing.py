"""Answers over HTTP: what is admitted and what is refused, each with its own status, and nothing changed if refused.

Numbers are those of the scenarios in the digest of the pipeline framework's await units.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepwell import InteractionStatus
from tests.web.conftest import MakeDoor
from tests.web.door import ACME, ANA, ANSWERER, Door, bearing, problem

YES = {"approved": True, "note": "fine"}


async def test_an_answer_by_id_resumes_the_instance(door: Door) -> None:
    """14."""
    question = await door.ask()

    answered = await door.complete(ANSWERER, interactionId=question.id, responsePayload=YES, actor="bob")
    await door.h.drain()

    assert answered.status_code == 200
    assert answered.headers["content-type"] == "application/json"
    assert answered.json() == {
        "interactionId": question.id, "executionId": str(question.instance_id), "stepId": "Expense.approve",
        "status": "completed", "duplicate": False,
    }  # fmt: skip
    await door.h.assert_done(question.instance_id, {"status": "completed", "said": YES, "by": "bob"})


async def test_an_answer_by_correlation_id_resumes_the_instance(door: Door) -> None:
    """15."""
    question = await door.ask()

    answered = await door.complete(correlationId=question.correlation_id, responsePayload=YES, idempotencyKey="any")
    await door.h.drain()

    assert (answered.status_code, answered.json()["interactionId"]) == (200, question.id)
    await door.h.assert_done(question.instance_id)


@pytest.mark.parametrize("tenant", [None, "acme"])
async def test_who_holds_the_token_of_a_question_answers_it_without_being_known(
    door: Door, tenant: str | None
) -> None:
    """16."""
    question = await door.ask(token=True, tenant=tenant)
    token = await door.h.engine.interactions.token(question.id, tenant=tenant)

    answered = await door.complete(None, resumeToken=token, responsePayload=YES, actor="somebody")
    await door.h.drain()

    assert (answered.status_code, answered.json()["interactionId"]) == (200, question.id)
    done = await door.h.assert_done(question.instance_id)
    assert done.result["by"] == "somebody"


async def test_the_same_answer_again_is_a_duplicate_and_another_one_a_conflict(door: Door) -> None:
    """17, 19."""
    question = await door.ask()
    await door.complete(interactionId=question.id, responsePayload=YES)

    same = await door.complete(correlationId=question.correlation_id, responsePayload=YES)
    other = await door.refused(interactionId=question.id, responsePayload={"approved": False})
    await door.h.drain()

    assert (same.status_code, same.json()["duplicate"]) == (200, True)
    assert problem(other) == (409, "conflict", None)
    assert other.json()["interactionId"] == question.id
    done = await door.h.assert_done(question.instance_id)
    assert done.result["said"] == YES


async def test_the_key_of_an_answer_makes_it_neither_a_duplicate_nor_another_one(door: Door) -> None:
    """17, 19, Gap 11: payloads are compared: the same one is a duplicate, another one a conflict, whatever the key."""
    question = await door.ask()
    named = {"interactionId": question.id}
    await door.complete(**named, responsePayload=YES, idempotencyKey="one")

    same = [await door.complete(**named, responsePayload=YES, idempotencyKey=key) for key in ("one", "two")]
    other = [await door.refused(**named, responsePayload={"approved": False}, idempotencyKey=key)
             for key in ("one", "two")]  # fmt: skip

    assert [(answer.status_code, answer.json()["duplicate"]) for answer in same] == [(200, True)] * 2
    assert [problem(answer) for answer in other] == [(409, "conflict", None)] * 2
    assert (await door.h.engine.interactions.get(question.id)).reply == YES


async def test_of_two_answers_at_once_one_is_admitted(door: Door) -> None:
    """20."""
    question = await door.ask()

    answers = await asyncio.gather(
        *(door.complete(interactionId=question.id, responsePayload={"approved": True, "note": str(n)})
          for n in range(4))
    )  # fmt: skip

    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
    [winner] = [n for n, answer in enumerate(answers) if answer.status_code == 200]
    stored = await door.h.engine.interactions.get(question.id)
    assert stored.reply == {"approved": True, "note": str(winner)}


async def test_nobody_and_another_tenants_question_are_the_same_to_a_caller(door: Door) -> None:
    """Scenarios 59, 68: a caller has one tenant, and is denied all others as if they were not there."""
    ours, acmes = await door.ask(), await door.ask(tenant="acme")
    unknown = "7d0f0b1e-6f0c-4c39-9d4b-0d3a4a5f1c11"

    refused = [
        await door.refused(ANA, interactionId=unknown, responsePayload=YES),
        await door.refused(ANA, correlationId=unknown, responsePayload=YES),
        await door.refused(ANA, interactionId=acmes.id, responsePayload=YES),
        await door.refused(ACME, interactionId=ours.id, responsePayload=YES),
        await door.refused(ACME, correlationId=ours.correlation_id, responsePayload=YES),
    ]
    admitted = await door.complete(ACME, interactionId=acmes.id, responsePayload=YES)

    assert [problem(answer) for answer in refused] == [(404, "unknown", None)] * 5
    assert admitted.status_code == 200
    assert (await door.h.engine.interactions.get(ours.id)).status.is_open


async def test_a_question_that_is_named_twice_is_the_same_by_both_names_or_nobody(door: Door) -> None:
    """A provider may send back every name it was given."""
    question, other = await door.ask(token=True), await door.ask()
    token = await door.h.engine.interactions.token(question.id)

    mixed = await door.refused(interactionId=question.id, correlationId=other.correlation_id, responsePayload=YES)
    mixed_too = await door.refused(
        None, interactionId=question.id, correlationId=other.correlation_id, resumeToken=token, responsePayload=YES
    )
    whole = await door.complete(
        None, interactionId=question.id, correlationId=question.correlation_id, resumeToken=token, responsePayload=YES
    )

    assert [problem(mixed), problem(mixed_too)] == [(404, "unknown", None)] * 2
    assert (whole.status_code, whole.json()["duplicate"]) == (200, False)
    assert (await door.h.engine.interactions.get(other.id)).status.is_open


@pytest.mark.parametrize("depth", [50, 500, 950])
async def test_a_reply_that_is_nested_deeply_is_refused_and_hurts_nobody_else(door: Door, depth: int) -> None:
    question = await door.ask()
    deep = f'{{"interactionId": "{question.id}", "responsePayload": {"[" * depth + "]" * depth}}}'

    refused, admitted = await asyncio.gather(
        door.client.post("/interactions/complete", content=deep,
                         headers={"Content-Type": "application/json", **bearing(ANA)}),
        door.complete(interactionId=question.id, responsePayload=YES),
    )  # fmt: skip

    assert problem(refused)[0] in (400, 409, 422)
    assert admitted.status_code == 200
    assert (await door.h.engine.interactions.get(question.id)).reply == YES


@pytest.mark.parametrize("named", [{}, {"interactionId": " ", "correlationId": "", "resumeToken": None}])
async def test_an_answer_to_no_question_is_refused(door: Door, named: dict[str, Any]) -> None:
    """60."""
    await door.ask()

    answer = await door.refused(**named, responsePayload=YES)

    assert problem(answer)[0] == 422


async def test_an_answer_of_another_type_is_refused_and_the_question_stays_open(door: Door) -> None:
    """65."""
    question = await door.ask()

    wrong = await door.refused(interactionId=question.id, responsePayload={"approved": "perhaps"})
    missing = await door.refused(interactionId=question.id, responsePayload={})
    null = await door.refused(interactionId=question.id, responsePayload=None)
    right = await door.complete(interactionId=question.id, responsePayload=YES)

    assert problem(wrong) == (422, "type", "responsePayload.approved")
    assert problem(missing)[:2] == (422, "type")
    assert problem(null) == (422, "type", "responsePayload")
    assert right.status_code == 200


async def test_a_value_that_postgres_can_not_hold_is_refused_by_its_field(door: Door) -> None:
    question = await door.ask()

    in_reply = await door.refused(interactionId=question.id, responsePayload={"approved": True, "note": "\x00"})
    in_actor = await door.refused(ANSWERER, interactionId=question.id, responsePayload=YES, actor="a\x00")
    long_actor = await door.refused(ANSWERER, interactionId=question.id, responsePayload=YES, actor="x" * 201)

    assert problem(in_reply)[0] == 422
    assert [problem(in_actor), problem(long_actor)] == [(422, "field", "actor")] * 2
    assert (await door.h.engine.interactions.get(question.id)).status.is_open


async def test_an_answer_that_is_too_large_is_refused(make_door: MakeDoor) -> None:
    door = await make_door()
    question = await door.ask()

    long_reply = {"approved": True, "note": "x" * (door.h.engine.settings.max_payload + 1)}
    reply = await door.refused(interactionId=question.id, responsePayload=long_reply)
    body = await door.refused(interactionId=question.id, responsePayload="x" * 2 * 1024 * 1024)

    assert problem(reply)[:2] == (413, "size")
    assert problem(body) == (413, "size", None)
    assert (await door.h.engine.interactions.get(question.id)).status.is_open


async def test_a_closed_question_takes_no_answer_even_with_a_good_token(door: Door) -> None:
    """63."""
    question = await door.ask(token=True)
    token = await door.h.engine.interactions.token(question.id)
    await door.h.engine.cancel(question.instance_id)

    answer = await door.refused(None, resumeToken=token, responsePayload=YES)

    assert problem(answer) == (409, "closed", None)
    assert answer.json()["interactionStatus"] == "cancelled"


async def test_an_answer_after_the_deadline_is_too_late_and_the_instance_times_out(door: Door) -> None:
    """73."""
    question = await door.ask(hours=1)
    await door.h.advance(timedelta(hours=2))

    answer = await door.refused(interactionId=question.id, responsePayload=YES)
    await door.h.drain()

    assert problem(answer) == (410, "late", None)
    done = await door.h.assert_done(question.instance_id)
    assert done.result["status"] == InteractionStatus.TIMED_OUT


async def test_a_question_that_requires_its_token_is_answered_by_nobody_without(door: Door) -> None:
    """61, 64."""
    question, other = await door.ask(token=True), await door.ask(token=True)
    token = await door.h.engine.interactions.token(question.id)
    foreign = await door.h.engine.interactions.token(other.id)
    forged = token[:-1] + ("A" if token[-1] != "A" else "B")

    known = [
        await door.refused(ANA, interactionId=question.id, responsePayload=YES),
        await door.refused(ANA, interactionId=question.id, resumeToken=forged, responsePayload=YES),
        await door.refused(ANA, interactionId=question.id, resumeToken=foreign, responsePayload=YES),
    ]
    unknown = [
        await door.refused(None, interactionId=question.id, resumeToken=forged, responsePayload=YES),
        await door.refused(None, interactionId=question.id, resumeToken=foreign, responsePayload=YES),
        await door.refused(None, resumeToken="sw1.nobody.e30.e30", responsePayload=YES),
        await door.refused(None, resumeToken="nonsense", responsePayload=YES),
    ]
    whole = await door.complete(ANA, interactionId=question.id, resumeToken=token, responsePayload=YES)

    assert [problem(answer) for answer in known] == [(403, "token", "resumeToken")] * 3
    assert [problem(answer) for answer in unknown] == [(401, "token", "resumeToken")] * 4
    assert [question.id in answer.text for answer in unknown] == [False] * 4
    assert whole.status_code == 200


async def test_a_token_of_a_retired_key_answers_nothing(door: Door) -> None:
    """61: the key is in the ring here, and was withdrawn in the database."""
    question = await door.ask(token=True)
    token = await door.h.engine.interactions.token(question.id)
    await door.h.sql("select stepwell.retire_token_key('2026-11')")

    unknown = await door.refused(None, resumeToken=token, responsePayload=YES)
    known = await door.refused(ANA, interactionId=question.id, resumeToken=token, responsePayload=YES)

    assert problem(unknown) == (401, "token", "resumeToken")
    assert problem(known) == (403, "token", "resumeToken")
    assert question.id not in unknown.text
    assert all("'2026-11', which is retired" in answer.json()["detail"] for answer in (unknown, known))


async def test_a_token_opens_no_question_that_requires_none_unless_it_is_its_own(door: Door) -> None:
    """61: who is not known does not get at a question by naming it beside a token of another one, or a forged one."""
    plain, other = await door.ask(), await door.ask(token=True)
    foreign = await door.h.engine.interactions.token(other.id)

    answers = [
        await door.refused(None, interactionId=plain.id, resumeToken=foreign, responsePayload=YES),
        await door.refused(None, correlationId=plain.correlation_id, resumeToken=foreign, responsePayload=YES),
        await door.refused(None, interactionId=plain.id, resumeToken="nonsense", responsePayload=YES),
    ]

    assert [problem(answer) for answer in answers] == [(401, "token", "resumeToken")] * 3
    assert (await door.h.engine.interactions.get(plain.id)).status.is_open
    assert (await door.h.engine.interactions.get(other.id)).status.is_open


async def test_who_is_not_known_learns_nothing_of_a_question_by_a_token_that_does_not_hold(door: Door) -> None:
    """61: the answer is the same whether or not there is such a question; who is known learns that there is none."""
    question, unknown = await door.ask(token=True), "7d0f0b1e-6f0c-4c39-9d4b-0d3a4a5f1c11"
    forged = (await door.h.engine.interactions.token(question.id))[:-2]

    for token in (forged, "nonsense", "sw1.gone.W10.abc"):
        there = await door.refused(None, interactionId=question.id, resumeToken=token, responsePayload=YES)
        nowhere = await door.refused(None, interactionId=unknown, resumeToken=token, responsePayload=YES)
        told = await door.refused(ANA, interactionId=unknown, resumeToken=token, responsePayload=YES)

        assert problem(there) == (401, "token", "resumeToken")
        assert (nowhere.status_code, nowhere.json()) == (there.status_code, there.json())
        assert problem(told) == (404, "unknown", None)


async def test_a_caller_of_a_tenant_does_not_answer_anothers_question_by_its_token(door: Door) -> None:
    """61."""
    question = await door.ask(token=True)
    token = await door.h.engine.interactions.token(question.id)

    answer = await door.refused(ACME, resumeToken=token, responsePayload=YES)

    assert answer.status_code in (403, 404)
    assert problem(answer)[1] in ("token", "unknown")
    assert (await door.h.engine.interactions.get(question.id)).status.is_open


async def test_the_callers_own_name_counts_and_not_the_one_that_is_sent(door: Door) -> None:
    """67."""
    by_ana, by_anyone = await door.ask(), await door.ask()

    await door.complete(ANA, interactionId=by_ana.id, responsePayload=YES, actor="the boss")
    await door.complete(ANSWERER, interactionId=by_anyone.id, responsePayload=YES, actor="bob")

    assert (await door.h.engine.interactions.get(by_ana.id)).actor == "ana"
    assert (await door.h.engine.interactions.get(by_anyone.id)).actor == "bob"
