"""Scripted replies by themselves: the replies that arrive are those of the script."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import CompletionConflict, DatabaseUnavailable, DefinitionError, PayloadTooLarge
from stepwell.testing import NEVER, Later, Says, Scripted, Twice
from stepwell.testing.transports.conformance import make_dispatch
from stepwell.testing.transports.recorder import Admissions
from stepwell.transports import Answer, Dispatch, SendFailed, Undeliverable


async def asked(transport: Scripted, *interactions: str) -> Admissions:
    """Send these interactions, and receive the replies."""
    admissions = Admissions()
    await transport.open()
    for interaction in interactions:
        await transport.send(make_dispatch(interaction, tenant="acme", token=None))
    await transport.bring(admissions)
    return admissions


def heard(admissions: Admissions) -> list[tuple[str | None, Any]]:
    return [(answer.interaction, answer.reply) for answer in admissions.tried]


async def test_each_interaction_gets_the_next_reply_of_the_script() -> None:
    admissions = await asked(Scripted("payments", ["yes", NEVER, None]), "int-1", "int-2", "int-3", "int-4")

    assert heard(admissions) == [("int-1", "yes"), ("int-3", None)]


async def test_a_function_of_the_script_gets_the_interaction() -> None:
    def double(dispatch: Dispatch) -> Any:
        return NEVER if dispatch.interaction_id == "int-1" else dispatch.request["amount"]

    async def slow(dispatch: Dispatch) -> Any:
        return double(dispatch)

    for function in (double, slow):
        assert heard(await asked(Scripted("payments", function), "int-1", "int-2")) == [("int-2", "12.50")]


async def test_an_interaction_that_is_sent_again_keeps_its_reply() -> None:
    admissions = await asked(Scripted("payments", ["yes", "no"]), "int-1", "int-1", "int-2")

    assert heard(admissions) == [("int-1", "yes"), ("int-1", "yes"), ("int-2", "no")]


async def test_an_exception_of_the_script_is_raised_by_one_dispatch() -> None:
    transport = Scripted("payments", [SendFailed("down"), "yes", Undeliverable("no such customer")])

    with pytest.raises(SendFailed, match="down"):
        await asked(transport, "int-1")
    assert heard(await asked(transport, "int-1")) == [("int-1", "yes")]
    with pytest.raises(Undeliverable):
        await asked(transport, "int-2")
    assert [dispatch.interaction_id for dispatch in transport.asked] == ["int-1", "int-1", "int-2"]


async def test_a_later_reply_waits_for_its_release() -> None:
    transport, admissions = Scripted("payments", [Later("yes")]), Admissions()
    assert heard(await asked(transport, "int-1")) == []

    assert transport.release() == 1
    assert await transport.bring(admissions) == 1

    assert heard(admissions) == [("int-1", "yes")]


async def test_a_scripted_reply_may_come_twice_or_contradict_itself() -> None:
    admissions = await asked(Scripted("payments", [Twice("yes"), Twice("yes", "no")]), "int-1", "int-2")

    assert heard(admissions) == [("int-1", "yes"), ("int-1", "yes"), ("int-2", "yes"), ("int-2", "no")]


@pytest.mark.parametrize(("by", "expected"), [
    ("interaction", Answer(reply=1, interaction="int-1", tenant="acme", actor="ana", token="t")),  # noqa: S106
    ("correlation", Answer(reply=1, correlation="cor-1", tenant="acme", actor="ana", token="t")),  # noqa: S106
    ("token", Answer(reply=1, token="t", actor="ana")),  # noqa: S106
])  # fmt: skip
async def test_a_reply_names_its_interaction_in_three_ways_and_has_its_token(by: Any, expected: Answer) -> None:
    transport, admissions = Scripted("payments", [Says(1, actor="ana", by=by)]), Admissions()
    await transport.send(make_dispatch(correlation_id="cor-1", tenant="acme", token="t"))  # noqa: S106
    await transport.bring(admissions)

    assert admissions.tried == [expected]


@pytest.mark.parametrize("refusal", [CompletionConflict("int-1"), PayloadTooLarge("reply", 2, 1)])
async def test_refused_replies_are_kept_for_the_test(refusal: Any) -> None:
    transport = Scripted("payments", ["yes"])
    await transport.send(make_dispatch())
    await transport.bring(Admissions({"int-1": refusal}))

    assert (transport.refused, transport.completions) == ([refusal], [])


async def test_with_a_worker_replies_arrive_by_themselves_and_outlast_an_outage() -> None:
    transport, admissions = Scripted("payments", ["yes"]), Admissions({"int-1": [DatabaseUnavailable("away")]})
    await transport.open()

    async with asyncio.timeout(10), admissions.received_by(transport):
        await transport.send(make_dispatch())
        await admissions.admitted_all("int-1")

    assert len(transport.completions) == 1


def test_an_invalid_script_is_refused() -> None:
    with pytest.raises(DefinitionError, match="one for each interaction"):
        Scripted("payments", "yes")
    with pytest.raises(DefinitionError, match="the function decides"):
        Scripted("payments", lambda _: NEVER).reply("yes")
