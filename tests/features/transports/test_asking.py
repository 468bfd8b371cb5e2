"""Webhooks under a real engine: sent by a worker, retried, completed by the external system."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Engine
from stepwell.testing import armed
from stepwell.transports import SIGNATURE_HEADER, Admit, Answer, Webhook, verify_signature
from tests.conftest import MakeHarness
from tests.features.interactions.machines import Batch, Expense
from tests.features.transports.dispatches import SECRET
from tests.features.transports.memory import Broker, BrokerSide, Memory
from tests.features.transports.servers import Server, response

pytest.importorskip("aiohttp", reason='the extra "webhook" is not installed')

YES = {"approved": True}


class Stumbling(Memory):
    """Breaks once before it receives anything."""

    has_stumbled = False

    async def receive(self, admit: Admit, /) -> None:
        if not self.has_stumbled:
            self.has_stumbled = True
            raise ConnectionResetError("the broker went away")
        await super().receive(admit)


class Hurried(Webhook):
    """Does not wait for seconds between two tries."""

    def backoff(self, attempt: int, /) -> timedelta:
        return timedelta(milliseconds=5 * attempt)


def webhook(server: Server, **settings: Any) -> Webhook:
    return Hurried("payments", url=server.url, secret=SECRET, **{"allow_private": True, **settings})


async def test_an_interaction_is_sent_by_a_worker_and_completed_by_its_ids(make_harness: MakeHarness) -> None:
    async with Server() as server:
        h = await make_harness([Expense], transports=[webhook(server)])
        async with h.engine.worker():
            expense = await h.engine.start(Expense, {"transport": "payments", "amount": 12, "seconds": 60})
            (request,) = await server.seen(1)
            await h.engine.complete(interaction=request.document["interactionId"], reply=YES, actor="provider")
            result = await expense.result(timeout=10)

    assert result == {"status": "completed", "approved": True, "actor": "provider", "type": "Decision"}
    assert request.document["requestPayload"] == {"amount": 12}
    assert request.document["executionId"] == str(expense.id)
    verify_signature(request.body, request.headers[SIGNATURE_HEADER.lower()], SECRET)


async def test_a_response_of_the_external_system_is_kept_with_the_interaction(make_harness: MakeHarness) -> None:
    async with Server(response(201)) as server:
        h = await make_harness([Expense], transports=[webhook(server)])
        expense = await h.engine.start(Expense, {"transport": "payments"})
        await h.drain()

        (kept,) = (await h.engine.interactions.pending(transport="payments")).items

    assert (kept.status, kept.attempts, kept.instance_id) == ("dispatched", 1, expense.id)
    assert kept.metadata == {"url": server.url, "statusCode": 201}


async def test_a_server_that_fails_twice_gets_a_third_request_with_the_same_ids(make_harness: MakeHarness) -> None:
    """Scenario 83."""
    async with Server(response(500), response(503)) as server:
        h = await make_harness([Expense], transports=[webhook(server)])
        async with h.engine.worker():
            expense = await h.engine.start(Expense, {"transport": "payments"})
            requests = await server.seen(3)
            await h.engine.complete(interaction=requests[2].document["interactionId"], reply=YES)
            await expense.result(timeout=10)

    documents = [request.document for request in requests]
    assert [document["attempt"] for document in documents] == [1, 2, 3]
    for field in ("interactionId", "correlationId", "idempotencyKey", "requestPayload"):
        assert len({str(document[field]) for document in documents}) == 1


async def test_a_completion_may_arrive_before_its_sending_is_recorded(make_harness: MakeHarness) -> None:
    """Scenario 22: the receiver calls back before it responds to the request."""
    engines: list[Engine] = []

    async def call_back(request: Any, writer: Any) -> None:
        await engines[0].complete(interaction=request.document["interactionId"], reply=YES)
        writer.write(response(200))

    async with Server(call_back) as server:
        h = await make_harness([Expense], transports=[webhook(server)])
        engines.append(h.engine)
        async with h.engine.worker():
            expense = await h.engine.start(Expense, {"transport": "payments"})
            result = await expense.result(timeout=10)

    assert result["status"] == "completed"
    assert len(server.requests) == 1


async def test_a_broker_completes_interactions_of_any_transport_without_a_token(
    make_harness: MakeHarness,
) -> None:
    """The security guide says so: several transports may share a topic of completions."""
    side = BrokerSide()
    h = await make_harness([Expense], transports=[side.make_transport()], token_keys={"1": SECRET})
    async with h.engine.worker():
        open_one = await h.engine.start(Expense, {"amount": 1}, tenant="acme")
        guarded = await h.engine.start(Expense, {"amount": 2, "token": True}, tenant="acme")
        for expense in (guarded, open_one):
            await expense.wait(until="settled", timeout=10)
        asked = {q.instance_id: q.id for q in (await h.engine.interactions.pending(tenant="acme")).items}

        for expense in (guarded, open_one):
            await side.answer(Answer(interaction=asked[expense.id], reply=YES, tenant="acme"))
        result = await open_one.result(timeout=10)

    assert result["status"] == "completed"
    assert (await guarded.get()).status == "awaiting_external"
    assert len(side.broker.dead) == 1


async def test_a_forbidden_address_fails_the_interaction_at_once(make_harness: MakeHarness) -> None:
    async def inside(host: str, port: int) -> Sequence[str]:
        return ["10.0.0.1"]

    hook = Webhook("payments", url="https://pay.example/ask", secret=SECRET, resolver=inside)
    h = await make_harness([Expense], transports=[hook])
    expense = await h.engine.start(Expense, {"transport": "payments"})
    await h.drain()

    assert (await h.assert_done(expense)).result["status"] == "failed"


async def test_a_stopping_worker_leaves_the_transport_to_the_others(make_harness: MakeHarness) -> None:
    async with Server() as server:
        h = await make_harness([Expense], transports=[webhook(server)])
        async with h.engine.worker() as staying:
            async with h.engine.worker():
                await h.engine.start_many([(Expense, {"transport": "payments"})] * 20)
                await server.seen(20)
            await h.engine.start_many([(Expense, {"transport": "payments"})] * 20)
            requests = await server.seen(40)

            assert staying.id is not None
    assert len({request.document["interactionId"] for request in requests}) == 40
    assert {request.document["attempt"] for request in requests} == {1}


async def test_a_stream_of_items_sends_no_more_than_its_window_at_a_time(make_harness: MakeHarness) -> None:
    async with Server() as server:
        h = await make_harness([Batch], transports=[webhook(server)])
        with armed("dispatcher.recorded") as recorded:
            async with h.engine.worker():
                batch = await h.engine.start(Batch, {"items": [1, 2, 3], "window": 1, "transport": "payments"})
                for number in (1, 2, 3):
                    requests = await server.seen(number)
                    await recorded.reached(number)
                    assert len(requests) == number
                    last = requests[-1].document
                    await h.engine.complete(interaction=last["interactionId"], reply=last["requestPayload"]["number"])
                result = await batch.result(timeout=10)

    assert [value for _, _, value in result] == [1, 2, 3]


@pytest.mark.parametrize("kind", [Memory, Stumbling])
async def test_a_custom_transport_receives_completions_even_after_it_failed(
    make_harness: MakeHarness, kind: type[Memory]
) -> None:
    far = BrokerSide(kind)
    h = await make_harness([Expense], transports=[far.make_transport()])
    async with h.engine.worker():
        expense = await h.engine.start(Expense, {"transport": "memory"})
        (interaction,) = await far.received(1)
        await far.send_poison()
        await far.answer(Answer(reply={"approved": "perhaps"}, interaction=interaction["interactionId"]))
        await far.answer(Answer(reply=YES, correlation=interaction["correlationId"], actor="ana"))
        result = await expense.result(timeout=10)

    assert result == {"status": "completed", "approved": True, "actor": "ana", "type": "Decision"}
    assert len(far.broker.dead) == 2  # an invalid completion, and a refused one


async def test_a_worker_that_receives_completions_stops_in_order(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    far = BrokerSide(Memory)
    h = await make_harness([Expense], transports=[far.make_transport()])

    async with h.engine.worker() as worker:
        worker_id = worker.id

    [left] = await h.sql("select has_left from stepwell.workers where id = $1", worker_id)
    assert left["has_left"]
    assert "cancelled the worker's tasks" not in caplog.text


async def test_a_broken_transport_stops_no_other(make_harness: MakeHarness) -> None:
    class Unopenable(Memory):
        name = "broken"

        async def open(self) -> None:
            raise ConnectionRefusedError("nobody is there")

    async with Server() as server:
        h = await make_harness([Expense], transports=[Unopenable(Broker()), webhook(server)])
        async with h.engine.worker():
            await h.engine.start(Expense, {"transport": "broken"})
            expense = await h.engine.start(Expense, {"transport": "payments"})
            (request,) = await server.seen(1)
            await h.engine.complete(interaction=request.document["interactionId"], reply=YES)
            result = await expense.result(timeout=10)

    assert (result["status"], result["approved"]) == ("completed", True)
