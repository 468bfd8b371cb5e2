"""A completions API before a real engine with open interactions, and clients that call it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx

from stepwell import Ask, Context, Done, Interaction, Machine, Next, step
from stepwell.testing import Harness
from stepwell.web import BearerToken, completions
from tests.features.interactions.looks import snapshot

KEYS = {"2026-11": "a secret of the tests, of at least 32 bytes"}
ANA, READER, ANSWERER, ACME = ("ana-" + "a" * 40, "reader-" + "r" * 40, "answerer-" + "c" * 40, "acme-" + "m" * 40)
TOKENS = [
    BearerToken(ANA, scopes={"read", "complete"}, actor="ana"),
    BearerToken(READER, scopes={"read"}),
    BearerToken(ANSWERER, scopes={"complete"}),
    BearerToken(ACME, scopes={"read", "complete"}, tenant="acme"),
]


@dataclass
class Decision:
    approved: bool
    note: str = ""


class Expense(Machine):
    """Asks a person, and ends with the reply."""

    @dataclass
    class State:
        amount: int = 10
        assignee: str | None = None
        group: str | None = None
        hours: int | None = None
        token: bool = False

    @step
    async def start(self, ctx: Context[State]) -> Next:
        return Next(self.approve)

    @step
    async def approve(self, ctx: Context[State]) -> Ask:
        timeout = None if ctx.state.hours is None else timedelta(hours=ctx.state.hours)
        return Ask(
            "manual", {"amount": ctx.state.amount}, reply=Decision, then=self.settle, timeout=timeout,
            assignee=ctx.state.assignee, group=ctx.state.group, token=ctx.state.token,
        )  # fmt: skip

    @step
    async def settle(self, ctx: Context[State]) -> Done:
        reply = ctx.reply
        assert reply is not None
        return Done({"status": reply.status, "said": reply.value, "by": reply.actor})


class Api:
    """The harness behind the API, and the API itself."""

    def __init__(self, harness: Harness, **options: Any) -> None:
        self.h = harness
        self.app = completions(harness.engine, **{"tokens": TOKENS, **options})
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(self.app), base_url="http://door")

    async def ask(self, *, tenant: str | None = None, **state: Any) -> Interaction:
        """An open interaction of a new instance."""
        handle = await self.h.engine.start(Expense, state, tenant=tenant)
        await self.h.drain()
        page = await self.h.engine.interactions.pending(tenant=tenant, limit=500)
        [question] = [question for question in page.items if question.instance_id == handle.id]
        return question

    async def complete(self, secret: str | None = ANA, **body: Any) -> httpx.Response:
        return await self.client.post("/interactions/complete", json=body, headers=bearing(secret))

    async def refused(self, secret: str | None = ANA, **body: Any) -> httpx.Response:
        """The refusal of a completion, which has changed nothing."""
        before = await snapshot(self.h)
        answer = await self.complete(secret, **body)
        assert answer.is_client_error, answer.text
        assert await snapshot(self.h) == before
        return answer

    async def get(self, path: str, secret: str | None = ANA, **query: Any) -> httpx.Response:
        return await self.client.get(path, params=query, headers=bearing(secret))


def bearing(secret: str | None) -> dict[str, str]:
    return {} if secret is None else {"Authorization": f"Bearer {secret}"}


def problem(response: httpx.Response) -> tuple[int, str, str | None]:
    """Status, reason and field of a refusal; checks that it is one by RFC 9457."""
    found = response.json()
    assert response.headers["content-type"] == "application/problem+json"
    assert found["type"] == f"urn:stepwell:problem:{found['reason']}"
    assert found["status"] == response.status_code
    assert found["title"]
    assert found["detail"]
    return response.status_code, found["reason"], found.get("field")
