"""Reading interactions over HTTP: which ones are pending, page by page, and one by itself; only those of the caller."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest

from stepwell._store import interactions
from stepwell.web import interactions as web_interactions
from tests.conftest import MakeHarness
from tests.features.interactions.askers import asker
from tests.surfaces.web.api import ACME, ANA, READER, Api, problem


async def test_pending_interactions_match_all_filters_and_come_by_deadline(api: Api) -> None:
    """81."""
    later = await api.ask(assignee="ana", group="finance", hours=3)
    sooner = await api.ask(assignee="ana", group="finance", hours=2)
    never = await api.ask(assignee="ana", group="legal")
    bobs = await api.ask(assignee="bob", group="finance", hours=1)
    acmes = await api.ask(assignee="ana", group="finance", hours=1, tenant="acme")
    answered = await api.ask(assignee="ana", group="finance", hours=1)
    await api.complete(interactionId=answered.id, responsePayload={"approved": True})

    async def listed(secret: str = READER, **query: object) -> list[str]:
        page = (await api.get("/interactions/pending", secret, **query)).json()
        assert page["cursor"] is None
        return [item["interactionId"] for item in page["interactions"]]

    assert await listed() == [bobs.id, sooner.id, later.id, never.id]
    assert await listed(assignee="ana") == [sooner.id, later.id, never.id]
    assert await listed(assignee="ana", group="finance", machine="Expense", step="approve", transport="manual") == [
        sooner.id, later.id]  # fmt: skip
    assert await listed(assignee=" ", group="", machine="", step="", transport="") == await listed()
    assert await listed(step="settle") == await listed(machine="Nobody") == await listed(transport="mail") == []
    assert await listed(ACME) == [acmes.id]

    await api.h.advance(timedelta(minutes=90))
    assert await listed(overdue="true") == [bobs.id]
    assert await listed(overdue="false", group="finance") == [sooner.id, later.id]


async def test_pending_interactions_are_read_page_by_page(api: Api) -> None:
    asked = [await api.ask(hours=hours) for hours in (1, 1, 2, 2)] + [await api.ask()]

    seen, cursor, pages = [], None, 0
    while pages == 0 or cursor is not None:
        more = {} if cursor is None else {"cursor": cursor}
        page = (await api.get("/interactions/pending", limit=2, **more)).json()
        seen += [item["interactionId"] for item in page["interactions"]]
        cursor, pages = page["cursor"], pages + 1

    assert (seen, pages) == ([question.id for question in asked], 3)


async def test_a_page_of_large_interactions_is_shorter_and_leaves_the_loop_free(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of 50 held the event loop for a second. Each large request is decoded, and written, in its own turn."""
    large = asker(request={"text": "x" * 500_000}, name="Large")
    api = Api(await make_harness([large]))
    started = [await api.h.engine.start(large) for _ in range(25)]
    await api.h.drain()
    turns, decoded, written = [0], [], []
    decode, write = interactions._seen_and_found, web_interactions.show_interaction
    monkeypatch.setattr(interactions, "_seen_and_found", lambda row: (decoded.append(turns[0]), decode(row))[1])
    monkeypatch.setattr(
        web_interactions, "show_interaction", lambda asked: (written.append(turns[0]), write(asked))[1]
    )
    counting = asyncio.create_task(count(turns))

    seen, cursor, sizes = [], None, []
    while not sizes or cursor is not None:
        page = (await api.get("/interactions/pending", **({} if cursor is None else {"cursor": cursor}))).json()
        seen += [item["executionId"] for item in page["interactions"]]
        sizes.append(len(page["interactions"]))
        cursor = page["cursor"]

    counting.cancel()
    await api.client.aclose()
    assert seen == [str(handle.id) for handle in started]
    assert sizes == [10, 10, 5]  # READ_AT_ONCE of them are more than MOST_READ
    assert len(set(decoded)) == len(decoded) == len(set(written)) == len(written) == len(started)


async def count(turns: list[int]) -> None:
    """Count the turns of the event loop."""
    while True:
        await asyncio.sleep(0)
        turns[0] += 1


def forged(deadline: str) -> str:
    """A cursor that no page has given."""
    return json.dumps([deadline, "2026-01-01T00:00:00+00:00", "7d0f0b1e-6f0c-4c39-9d4b-0d3a4a5f1c11"]).encode().hex()


@pytest.mark.parametrize(
    "cursor",
    ["nonsense", "e30", "%00", "9" * 5_000, forged("2026-01-01T00:00:00"), forged("0001-01-01T00:00:00+23:00"),
     forged("9999-12-31T23:59:59-23:00")],
)  # fmt: skip
async def test_an_invalid_cursor_is_refused(api: Api, cursor: str) -> None:
    answer = await api.get("/interactions/pending", cursor=cursor)

    assert problem(answer) == (400, "malformed", "cursor")


@pytest.mark.parametrize("offset", ["+23:00", "-23:59", "+00:00:00.000001"])
async def test_a_cursor_with_an_unreadable_offset_is_no_server_error(
    api: Api, offset: str
) -> None:
    question = await api.ask(hours=1)

    page = await api.get("/interactions/pending", cursor=forged(f"2000-01-01T00:00:00{offset}"))

    assert (page.status_code, [item["interactionId"] for item in page.json()["interactions"]]) == (200, [question.id])


@pytest.mark.parametrize("name", ["assignee", "group", "machine", "step", "transport"])
async def test_a_filter_that_postgres_cannot_store_is_refused(api: Api, name: str) -> None:
    answer = await api.get("/interactions/pending", **{name: "a\x00b"})

    assert problem(answer) == (400, "malformed", name)


async def test_an_interaction_is_shown_whole_before_and_after_its_completion(api: Api) -> None:
    asked = await api.ask(amount=70, assignee="ana", group="finance", hours=1)
    before = (await api.get(f"/interactions/{asked.id}", READER)).json()
    await api.complete(ANA, interactionId=asked.id, responsePayload={"approved": True, "note": "größer"})
    after = (await api.get(f"/interactions/{asked.id}", READER)).json()

    assert asked.deadline is not None
    assert {name: before[name] for name in (
        "interactionId", "correlationId", "tenantId", "executionId", "machine", "step", "stepId", "itemIndex",
        "requestPayload", "responsePayload", "assignee", "group", "transportType", "overdue", "deadlineEpochMs",
        "requiresToken")} == {
        "interactionId": asked.id, "correlationId": asked.correlation_id, "tenantId": "",
        "executionId": str(asked.instance_id), "machine": "Expense", "step": "approve", "stepId": "Expense.approve",
        "itemIndex": None, "requestPayload": {"amount": 70}, "responsePayload": None, "assignee": "ana",
        "group": "finance", "transportType": "manual", "overdue": False,
        "deadlineEpochMs": round(asked.deadline.timestamp() * 1_000_000) // 1_000, "requiresToken": False,
    }  # fmt: skip
    assert before["outputType"] == "Decision"
    assert '"approved": {"type": "boolean"}' in json.dumps(before["outputSchema"])
    assert (after["status"], after["actor"]) == ("completed", "ana")
    assert after["responsePayload"] == {"approved": True, "note": "größer"}
    assert after["finishedAtEpochMs"] >= after["createdAtEpochMs"]


async def test_an_unknown_interaction_and_one_of_another_tenant_are_the_same(api: Api) -> None:
    """59."""
    acmes = await api.ask(tenant="acme")

    answers = [await api.get(f"/interactions/{name}") for name in (
        acmes.id, "7d0f0b1e-6f0c-4c39-9d4b-0d3a4a5f1c11", "nonsense", "%00", "x" * 3_000, "{}", "a%2Fb")]  # fmt: skip

    assert {problem(answer)[:2] for answer in answers} <= {(404, "unknown"), (404, "path")}
    assert (await api.get(f"/interactions/{acmes.id}", ACME)).status_code == 200


async def test_a_token_is_never_shown(api: Api) -> None:
    question = await api.ask(token=True)
    token = await api.h.engine.interactions.token(question.id)

    listed = await api.get("/interactions/pending")
    shown = await api.get(f"/interactions/{question.id}")

    assert shown.json()["requiresToken"] is True
    assert token.rsplit(".", 1)[1] not in listed.text + shown.text
