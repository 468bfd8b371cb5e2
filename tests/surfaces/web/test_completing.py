"""Completions over HTTP: each is admitted or refused with its own status, and a refused one changes nothing.

Numbers are those of the scenarios in the digest of the pipeline framework's await units.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepwell import InteractionStatus
from tests.features.interactions.looks import guesses
from tests.surfaces.web.api import ACME, ANA, ANSWERER, Api, bearing, problem
from tests.surfaces.web.conftest import MakeApi

YES = {"approved": True, "note": "fine"}


async def test_a_completion_by_id_resumes_the_instance(api: Api) -> None:
    """14."""
    question = await api.ask()

    answered = await api.complete(ANSWERER, interactionId=question.id, responsePayload=YES, actor="bob")
    await api.h.drain()

    assert answered.status_code == 200
    assert answered.headers["content-type"] == "application/json"
    assert answered.json() == {
        "interactionId": question.id, "executionId": str(question.instance_id), "stepId": "Expense.approve",
        "status": "completed", "duplicate": False,
    }  # fmt: skip
    await api.h.assert_done(question.instance_id, {"status": "completed", "said": YES, "by": "bob"})


async def test_a_completion_by_correlation_id_resumes_the_instance(api: Api) -> None:
    """15."""
    question = await api.ask()

    answered = await api.complete(correlationId=question.correlation_id, responsePayload=YES, idempotencyKey="any")
    await api.h.drain()

    assert (answered.status_code, answered.json()["interactionId"]) == (200, question.id)
    await api.h.assert_done(question.instance_id)


@pytest.mark.parametrize("tenant", [None, "acme"])
async def test_a_caller_with_the_token_completes_without_credentials(
    api: Api, tenant: str | None
) -> None:
    """16."""
    question = await api.ask(token=True, tenant=tenant)
    token = await api.h.engine.interactions.token(question.id, tenant=tenant)

    answered = await api.complete(None, resumeToken=token, responsePayload=YES, actor="somebody")
    await api.h.drain()

    assert (answered.status_code, answered.json()["interactionId"]) == (200, question.id)
    done = await api.h.assert_done(question.instance_id)
    assert done.result["by"] == "somebody"


async def test_the_same_completion_again_is_a_duplicate_and_another_a_conflict(api: Api) -> None:
    """17, 19."""
    question = await api.ask()
    await api.complete(interactionId=question.id, responsePayload=YES)

    same = await api.complete(correlationId=question.correlation_id, responsePayload=YES)
    other = await api.refused(interactionId=question.id, responsePayload={"approved": False})
    await api.h.drain()

    assert (same.status_code, same.json()["duplicate"]) == (200, True)
    assert problem(other) == (409, "conflict", None)
    assert other.json()["interactionId"] == question.id
    done = await api.h.assert_done(question.instance_id)
    assert done.result["said"] == YES


async def test_an_idempotency_key_does_not_change_duplicates_and_conflicts(api: Api) -> None:
    """17, 19, Gap 11: payloads are compared: the same one is a duplicate, another one a conflict, whatever the key."""
    question = await api.ask()
    named = {"interactionId": question.id}
    await api.complete(**named, responsePayload=YES, idempotencyKey="one")

    same = [await api.complete(**named, responsePayload=YES, idempotencyKey=key) for key in ("one", "two")]
    other = [await api.refused(**named, responsePayload={"approved": False}, idempotencyKey=key)
             for key in ("one", "two")]  # fmt: skip

    assert [(answer.status_code, answer.json()["duplicate"]) for answer in same] == [(200, True)] * 2
    assert [problem(answer) for answer in other] == [(409, "conflict", None)] * 2
    assert (await api.h.engine.interactions.get(question.id)).reply == YES


async def test_of_two_concurrent_requests_one_is_admitted(api: Api) -> None:
    """20."""
    question = await api.ask()

    answers = await asyncio.gather(
        *(api.complete(interactionId=question.id, responsePayload={"approved": True, "note": str(n)})
          for n in range(4))
    )  # fmt: skip

    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
    [winner] = [n for n, answer in enumerate(answers) if answer.status_code == 200]
    stored = await api.h.engine.interactions.get(question.id)
    assert stored.reply == {"approved": True, "note": str(winner)}


async def test_an_unknown_and_another_tenants_interaction_look_the_same(api: Api) -> None:
    """Scenarios 59, 68: a caller has one tenant, and interactions of all others are unknown to it."""
    ours, acmes = await api.ask(), await api.ask(tenant="acme")
    unknown = "7d0f0b1e-6f0c-4c39-9d4b-0d3a4a5f1c11"

    refused = [
        await api.refused(ANA, interactionId=unknown, responsePayload=YES),
        await api.refused(ANA, correlationId=unknown, responsePayload=YES),
        await api.refused(ANA, interactionId=acmes.id, responsePayload=YES),
        await api.refused(ACME, interactionId=ours.id, responsePayload=YES),
        await api.refused(ACME, correlationId=ours.correlation_id, responsePayload=YES),
    ]
    admitted = await api.complete(ACME, interactionId=acmes.id, responsePayload=YES)

    assert [problem(answer) for answer in refused] == [(404, "unknown", None)] * 5
    assert admitted.status_code == 200
    assert (await api.h.engine.interactions.get(ours.id)).status.is_open


async def test_an_interaction_with_two_names_must_match_both(api: Api) -> None:
    """A provider may send back every name that it was given."""
    question, other = await api.ask(token=True), await api.ask()
    token = await api.h.engine.interactions.token(question.id)

    mixed = await api.refused(interactionId=question.id, correlationId=other.correlation_id, responsePayload=YES)
    mixed_too = await api.refused(
        None, interactionId=question.id, correlationId=other.correlation_id, resumeToken=token, responsePayload=YES
    )
    whole = await api.complete(
        None, interactionId=question.id, correlationId=question.correlation_id, resumeToken=token, responsePayload=YES
    )

    assert problem(mixed) == (404, "unknown", None)
    assert problem(mixed_too) == (401, "token", "resumeToken")  # the same if there is such an interaction
    assert (whole.status_code, whole.json()["duplicate"]) == (200, False)
    assert (await api.h.engine.interactions.get(other.id)).status.is_open


@pytest.mark.parametrize("depth", [50, 500, 950])
async def test_a_reply_that_is_nested_deeply_is_refused_and_affects_no_other(api: Api, depth: int) -> None:
    question = await api.ask()
    deep = f'{{"interactionId": "{question.id}", "responsePayload": {"[" * depth + "]" * depth}}}'

    refused, admitted = await asyncio.gather(
        api.client.post("/interactions/complete", content=deep,
                         headers={"Content-Type": "application/json", **bearing(ANA)}),
        api.complete(interactionId=question.id, responsePayload=YES),
    )  # fmt: skip

    assert problem(refused)[0] in (400, 409, 422)
    assert admitted.status_code == 200
    assert (await api.h.engine.interactions.get(question.id)).reply == YES


@pytest.mark.parametrize("named", [{}, {"interactionId": " ", "correlationId": "", "resumeToken": None}])
async def test_a_completion_without_an_interaction_is_refused(api: Api, named: dict[str, Any]) -> None:
    """60."""
    await api.ask()

    answer = await api.refused(**named, responsePayload=YES)

    assert problem(answer)[0] == 422


async def test_a_reply_of_another_type_is_refused_and_the_interaction_stays_open(api: Api) -> None:
    """65."""
    question = await api.ask()

    wrong = await api.refused(interactionId=question.id, responsePayload={"approved": "perhaps"})
    missing = await api.refused(interactionId=question.id, responsePayload={})
    null = await api.refused(interactionId=question.id, responsePayload=None)
    right = await api.complete(interactionId=question.id, responsePayload=YES)

    assert problem(wrong) == (422, "type", "responsePayload.approved")
    assert problem(missing)[:2] == (422, "type")
    assert problem(null) == (422, "type", "responsePayload")
    assert right.status_code == 200


async def test_a_value_that_postgres_cannot_store_is_refused_with_its_field(api: Api) -> None:
    question = await api.ask()

    in_reply = await api.refused(interactionId=question.id, responsePayload={"approved": True, "note": "\x00"})
    in_actor = await api.refused(ANSWERER, interactionId=question.id, responsePayload=YES, actor="a\x00")
    long_actor = await api.refused(ANSWERER, interactionId=question.id, responsePayload=YES, actor="x" * 201)

    assert problem(in_reply)[0] == 422
    assert [problem(in_actor), problem(long_actor)] == [(422, "field", "actor")] * 2
    assert (await api.h.engine.interactions.get(question.id)).status.is_open


async def test_a_reply_that_is_too_large_is_refused(make_api: MakeApi) -> None:
    api = await make_api()
    question = await api.ask()

    long_reply = {"approved": True, "note": "x" * (api.h.engine.settings.max_payload + 1)}
    reply = await api.refused(interactionId=question.id, responsePayload=long_reply)
    body = await api.refused(interactionId=question.id, responsePayload="x" * 2 * 1024 * 1024)

    assert problem(reply)[:2] == (413, "size")
    assert problem(body) == (413, "size", None)
    assert (await api.h.engine.interactions.get(question.id)).status.is_open


async def test_a_closed_interaction_accepts_no_reply_even_with_a_valid_token(api: Api) -> None:
    """63."""
    question = await api.ask(token=True)
    token = await api.h.engine.interactions.token(question.id)
    await api.h.engine.cancel(question.instance_id)

    answer = await api.refused(None, resumeToken=token, responsePayload=YES)

    assert problem(answer) == (409, "closed", None)
    assert answer.json()["interactionStatus"] == "cancelled"


async def test_a_completion_after_the_deadline_is_late_and_the_instance_times_out(api: Api) -> None:
    """73."""
    question = await api.ask(hours=1)
    await api.h.advance(timedelta(hours=2))

    answer = await api.refused(interactionId=question.id, responsePayload=YES)
    await api.h.drain()

    assert problem(answer) == (410, "late", None)
    done = await api.h.assert_done(question.instance_id)
    assert done.result["status"] == InteractionStatus.TIMED_OUT


async def test_an_interaction_that_requires_its_token_is_not_completed_without_it(api: Api) -> None:
    """61, 64."""
    question, other = await api.ask(token=True), await api.ask(token=True)
    token = await api.h.engine.interactions.token(question.id)
    foreign = await api.h.engine.interactions.token(other.id)
    forged = token[:-1] + ("A" if token[-1] != "A" else "B")

    known = [
        await api.refused(ANA, interactionId=question.id, responsePayload=YES),
        await api.refused(ANA, interactionId=question.id, resumeToken=forged, responsePayload=YES),
        await api.refused(ANA, interactionId=question.id, resumeToken=foreign, responsePayload=YES),
    ]
    unknown = [
        await api.refused(None, interactionId=question.id, resumeToken=forged, responsePayload=YES),
        await api.refused(None, interactionId=question.id, resumeToken=foreign, responsePayload=YES),
        await api.refused(None, resumeToken="sw1.nobody.e30.e30", responsePayload=YES),
        await api.refused(None, resumeToken="nonsense", responsePayload=YES),
    ]
    whole = await api.complete(ANA, interactionId=question.id, resumeToken=token, responsePayload=YES)

    assert [problem(answer) for answer in known] == [(403, "token", "resumeToken")] * 3
    assert [problem(answer) for answer in unknown] == [(401, "token", "resumeToken")] * 4
    assert [question.id in answer.text for answer in unknown] == [False] * 4
    assert whole.status_code == 200


async def test_a_token_of_a_retired_key_completes_nothing(api: Api) -> None:
    """61: the key is in the ring here, and was withdrawn in the database."""
    question = await api.ask(token=True)
    token = await api.h.engine.interactions.token(question.id)
    await api.h.sql("select stepwell.retire_token_key('2026-11')")

    unknown = await api.refused(None, resumeToken=token, responsePayload=YES)
    known = await api.refused(ANA, interactionId=question.id, resumeToken=token, responsePayload=YES)

    assert problem(unknown) == (401, "token", "resumeToken")
    assert problem(known) == (403, "token", "resumeToken")
    assert question.id not in unknown.text
    assert all("'2026-11', which is retired" in answer.json()["detail"] for answer in (unknown, known))


async def test_a_token_completes_no_interaction_but_its_own(api: Api) -> None:
    """61: an unknown caller does not reach an interaction by naming it beside a token of another one, or a forged
    one."""
    plain, other = await api.ask(), await api.ask(token=True)
    foreign = await api.h.engine.interactions.token(other.id)

    answers = [
        await api.refused(None, interactionId=plain.id, resumeToken=foreign, responsePayload=YES),
        await api.refused(None, correlationId=plain.correlation_id, resumeToken=foreign, responsePayload=YES),
        await api.refused(None, interactionId=plain.id, resumeToken="nonsense", responsePayload=YES),
    ]

    assert [problem(answer) for answer in answers] == [(401, "token", "resumeToken")] * 3
    assert (await api.h.engine.interactions.get(plain.id)).status.is_open
    assert (await api.h.engine.interactions.get(other.id)).status.is_open


async def test_an_unknown_caller_learns_nothing_by_an_invalid_token(api: Api) -> None:
    """61: the response is the same whether or not there is such an interaction; a known caller learns that there is
    none."""
    question, unknown = await api.ask(token=True), "7d0f0b1e-6f0c-4c39-9d4b-0d3a4a5f1c11"
    forged = (await api.h.engine.interactions.token(question.id))[:-2]

    for token in (forged, "nonsense", "sw1.gone.W10.abc"):
        there = await api.refused(None, interactionId=question.id, resumeToken=token, responsePayload=YES)
        nowhere = await api.refused(None, interactionId=unknown, resumeToken=token, responsePayload=YES)
        told = await api.refused(ANA, interactionId=unknown, resumeToken=token, responsePayload=YES)

        assert problem(there) == (401, "token", "resumeToken")
        assert (nowhere.status_code, nowhere.json()) == (there.status_code, there.json())
        assert problem(told) == (404, "unknown", None)


async def test_an_unknown_caller_learns_nothing_by_another_interactions_token(api: Api) -> None:
    """The token is valid for its own interaction: a guessed name gets the same response, whether or not it is one."""
    own, question = await api.ask(token=True), await api.ask(token=True)
    token = await api.h.engine.interactions.token(own.id)
    unknown = "7d0f0b1e-6f0c-4c39-9d4b-0d3a4a5f1c11"

    for name, guessed in (("correlationId", question.correlation_id), ("interactionId", question.id)):
        there = await api.refused(None, **{name: guessed}, resumeToken=token, responsePayload=YES)
        nowhere = await api.refused(None, **{name: unknown}, resumeToken=token, responsePayload=YES)

        assert problem(there) == (401, "token", "resumeToken")
        assert (nowhere.status_code, nowhere.json()) == (there.status_code, there.json())
    whole = await api.complete(None, correlationId=own.correlation_id, resumeToken=token, responsePayload=YES)
    assert whole.status_code == 200


async def test_a_caller_that_may_only_complete_cannot_guess_a_correlation_id(api: Api) -> None:
    question = await api.ask()

    for guess in guesses(question):
        assert problem(await api.refused(ANSWERER, correlationId=guess, responsePayload=YES)) == (404, "unknown", None)

    assert (await api.h.engine.interactions.get(question.id)).status.is_open


async def test_a_caller_of_a_tenant_completes_nothing_of_another_by_its_token(api: Api) -> None:
    """61."""
    question = await api.ask(token=True)
    token = await api.h.engine.interactions.token(question.id)

    answer = await api.refused(ACME, resumeToken=token, responsePayload=YES)

    assert answer.status_code in (403, 404)
    assert problem(answer)[1] in ("token", "unknown")
    assert (await api.h.engine.interactions.get(question.id)).status.is_open


async def test_the_actor_is_the_callers_own_name_and_not_the_one_that_is_sent(api: Api) -> None:
    """67."""
    by_ana, by_anyone = await api.ask(), await api.ask()

    await api.complete(ANA, interactionId=by_ana.id, responsePayload=YES, actor="the boss")
    await api.complete(ANSWERER, interactionId=by_anyone.id, responsePayload=YES, actor="bob")

    assert (await api.h.engine.interactions.get(by_ana.id)).actor == "ana"
    assert (await api.h.engine.interactions.get(by_anyone.id)).actor == "bob"
