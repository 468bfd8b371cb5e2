"""An interaction that is sent by webhook and completed over HTTP, over real sockets, by its token alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stepwell import Ask, Context, Done, Machine, step
from stepwell.transports import Webhook
from stepwell.web import completions
from tests.conftest import MakeHarness
from tests.surfaces.web.api import KEYS
from tests.surfaces.web.server import served


@dataclass
class Receipt:
    number: int


class Payment(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Ask:
        return Ask("bank", {"amount": 120}, reply=Receipt, then=self.book, token=True)

    @step
    async def book(self, ctx: Context[Any]) -> Done:
        assert ctx.reply is not None
        return Done([ctx.reply.status, ctx.reply.value.number, ctx.reply.actor])


async def test_a_callback_before_the_provider_has_responded_is_admitted(make_harness: MakeHarness) -> None:
    """16, 22: the completion arrives before the dispatch is recorded; all names of the interaction come back with
    it."""
    answers: list[httpx.Response] = []

    async def bank(request: Request) -> Response:
        asked = await request.json()
        names = {name: asked[name] for name in ("interactionId", "correlationId", "resumeToken", "idempotencyKey")}
        async with httpx.AsyncClient() as client:
            body = {**names, "responsePayload": {"number": 7}, "actor": "the bank"}
            answers.append(await client.post(asked["callback"]["completionUrl"], json=body))
        return Response(status_code=202)

    app = Starlette(routes=[Route("/bank", bank, methods=["POST"])])
    async with served(app, lifespan="off") as address:
        webhook = Webhook(
            "bank", url=f"{address}/bank", callback=f"{address}/world/interactions/complete", secret=KEYS["2026-11"],
            allow_private=True,
        )  # fmt: skip
        h = await make_harness([Payment], transports=[webhook], token_keys=KEYS)
        app.mount("/world", completions(h.engine))
        async with h.engine.worker():
            payment = await h.engine.start(Payment)
            result = await payment.result(timeout=30)

    assert result == ["completed", 7, "the bank"]
    assert {(answer.status_code, answer.json()["status"]) for answer in answers} == {(200, "completed")}
