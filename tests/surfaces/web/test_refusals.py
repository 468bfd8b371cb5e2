"""What is logged about refused callers: each of them, rarely, and no secret."""

from __future__ import annotations

import logging
from datetime import timedelta

import httpx
import pytest

from stepwell.web import Rate
from stepwell.web.refusal_log import RefusalLog
from tests.support.waiting import eventually
from tests.surfaces.web.api import ANA, ANSWERER, READER, Api
from tests.surfaces.web.conftest import MakeApi

YES = {"approved": True}


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the API has logged as warnings."""
    found = [record for record in caplog.records if record.name == "stepwell.web"]
    assert {record.levelno for record in found} <= {logging.WARNING}
    return [record.getMessage() for record in found]


async def test_refusals_are_logged_once_by_address_and_by_token(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    question = await api.ask()

    for _ in range(3):
        await api.complete(f"{ANA}x", interactionId=question.id, responsePayload=YES)
        await api.complete(READER, interactionId=question.id, responsePayload=YES)
        await api.get(f"/interactions/{question.id}", ANSWERER)

    assert lines(caplog) == [
        "refused 127.0.0.1: 401 credentials at POST /interactions/complete",
        "refused tokens[1]: 403 scope at POST /interactions/complete",
        "refused tokens[2]: 403 scope at GET /interactions/{interaction_id}",
    ]


async def test_a_caller_that_calls_too_often_is_logged(make_api: MakeApi, caplog: pytest.LogCaptureFixture) -> None:
    api = await make_api(rate=Rate(1, per=timedelta(hours=1)))

    for _ in range(3):
        await api.get("/interactions/pending", ANA)

    assert lines(caplog) == ["refused tokens[0] (actor 'ana'): 429 rate at GET /interactions/pending"]


async def test_no_secret_of_a_refused_caller_is_logged(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    question = await api.ask(token=True)
    token = await api.h.engine.interactions.token(question.id)
    forged = f"{token[:-3]}xyz"

    await api.complete(None, resumeToken=forged, responsePayload=YES)
    await api.complete(f"{ANA}x", resumeToken=token, responsePayload=YES)
    await api.get(f"/interactions/{ANA}", READER + "x", token=token)
    await api.get(f"/interactions/{ANA}", ANSWERER, token=token)

    assert len(lines(caplog)) == 2
    for secret in (token, forged, ANA, READER, ANSWERER):
        assert secret not in "\n".join(lines(caplog))


async def test_admitted_and_unknown_completions_are_not_logged(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    question = await api.ask()

    await api.complete(ANA, interactionId=question.id, responsePayload=YES)
    await api.get("/interactions/unknown", ANA)
    await api.get("/nowhere", f"{ANA}x")

    assert lines(caplog) == []


async def test_a_caller_that_continues_gets_one_log_record_with_a_count(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    refusals = RefusalLog(clock=clock)

    for _ in range(31):
        refusals.note("10.0.0.7", "401 credentials at GET /a")
        clock.now += 1

    assert lines(caplog) == [
        "refused 10.0.0.7: 401 credentials at GET /a",
        "refused 10.0.0.7: 9 more in 10 s, the last: 401 credentials at GET /a",
        "refused 10.0.0.7: 10 more in 10 s, the last: 401 credentials at GET /a",
        "refused 10.0.0.7: 10 more in 10 s, the last: 401 credentials at GET /a",
    ]


async def test_a_caller_that_comes_back_is_logged_at_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    refusals = RefusalLog(clock=clock)

    refusals.note("10.0.0.7", "401 a")
    clock.now += 10
    refusals.note("10.0.0.7", "403 b")

    assert lines(caplog) == ["refused 10.0.0.7: 401 a", "refused 10.0.0.7: 403 b"]


async def test_the_last_count_is_logged_without_a_further_refusal(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    refusals = RefusalLog(every=0.05, clock=clock)

    for _ in range(3):
        refusals.note("10.0.0.7", "401 a")
    clock.now += 0.05
    await eventually(lambda: len(lines(caplog)) > 1)

    assert lines(caplog)[1] == "refused 10.0.0.7: 2 more in 0.05 s, the last: 401 a"


async def test_very_many_callers_share_a_log_record(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    refusals = RefusalLog(clock=clock, most=3)

    for number in range(50):
        refusals.note(f"10.0.0.{number}", "401 a")
    clock.now += 10
    refusals.log_due()

    assert lines(caplog) == [
        *(f"refused 10.0.0.{number}: 401 a" for number in range(3)),
        "refused other callers: 401 a",
        "refused other callers: 46 more in 10 s, the last: 401 a",
    ]


async def test_an_invalid_address_is_escaped(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    transport = httpx.ASGITransport(api.app, client=("\x1b[2Jroot\n" + "x" * 500, 1))

    async with httpx.AsyncClient(transport=transport, base_url="http://door") as client:
        await client.get("/interactions/pending")

    [line] = lines(caplog)
    assert line.startswith("refused \\x1b[2Jroot\\nxxx")
    assert line.isprintable()
    assert len(line) < 200
