"""What every transport over a broker promises under a real engine; a broker's tests subclass it."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, ClassVar

import msgspec
import pytest

from stepwell import CompletionConflict, Engine, UnknownDestination
from stepwell.testing import Harness, armed
from stepwell.testing.transports.recorder import Admissions
from stepwell.transports import Answer, SendFailed, Transport, Undeliverable
from stepwell.transports.broker.envelope import write_interaction
from tests.conftest import MakeHarness
from tests.features.interactions.machines import Batch, Expense
from tests.features.transports.brokers.sides import BrokerSide
from tests.features.transports.dispatches import make_dispatch
from tests.support.process_forker import Forked

YES = {"approved": True}
NOBODY = "00000000-0000-4000-8000-000000000000"
ITEMS = 24


def codes(letters: Any) -> list[str]:
    return sorted(letter.headers["stepwell-reason-code"] for letter in letters)


class BrokerPromises:
    """Requires `side`, a fixture: the open remote end."""

    absent: ClassVar[dict[str, Any]]  # options that lead nowhere
    largest: ClassVar[int] = 1_048_576 - 20  # bytes of a body that the broker takes, with little beside it
    responds_by: str  # the last word of the header that names the completion address

    async def test_an_interaction_is_sent_and_its_completion_is_received(
        self, side: BrokerSide, make_harness: MakeHarness
    ) -> None:
        """Scenario 77, over each broker: envelope and headers are those of the contract, ours before an author's.

        Whatever a side reads and writes, here and below, is checked against the schemas.
        """
        transport = side.make_transport(headers={"x-team": "shop"})
        h = await make_harness([Expense], transports=[transport])
        async with h.engine.worker():
            expense = await h.engine.start(Expense, {"transport": "broker", "amount": 12, "seconds": 60})
            [letter] = await side.letters(1)
            envelope = letter.document
            await side.reply(envelope, YES)
            result = await expense.result(timeout=30)

        assert envelope["requestPayload"] == {"amount": 12}
        assert {name: value for name, value in letter.headers.items() if not name.startswith("Nats-")} == {
            "x-team": "shop",
            "stepwell-execution-id": str(expense.id),
            "stepwell-interaction-id": envelope["interactionId"],
            "stepwell-correlation-id": envelope["correlationId"],
            "stepwell-step-id": "Expense.start",
            "stepwell-attempt": "1",
            f"stepwell-response-{self.responds_by}": side.options["responses"],
        }
        assert result == {"status": "completed", "approved": True, "actor": "provider", "type": "Decision"}

    async def test_a_token_and_a_tenant_are_sent_with_the_interaction(
        self, side: BrokerSide, make_harness: MakeHarness
    ) -> None:
        h = await make_harness(
            [Expense], transports=[side.make_transport()], token_keys={"k": "k" * 32}, tenant="zoë",
        )  # fmt: skip
        async with h.engine.worker():
            expense = await h.engine.start(Expense, {"transport": "broker", "token": True})
            [letter] = await side.letters(1)
            envelope = letter.document
            await side.reply(envelope, YES, resumeToken=None)
            [dead] = await side.dead_letters(1)
            await side.reply(envelope, YES, interactionId="")
            result = await expense.result(timeout=30)

        assert envelope["tenantId"] == letter.headers["stepwell-tenant-id"] == "zoë"
        assert dead.headers["stepwell-reason-code"] == "InvalidToken"
        assert result["approved"] is True

    async def test_invalid_and_refused_completions_become_dead_letters_with_a_reason(
        self, side: BrokerSide, make_harness: MakeHarness
    ) -> None:
        """Scenarios 78 and 79: none of it stops the stream, and an invalid completion leaves its interaction open.

        So does one for another tenant; one for an unknown interaction is retried as often as declared before.
        """
        h = await make_harness([Expense], transports=[side.make_transport(tries=2)], tenant="acme")
        async with h.engine.worker():
            expense = await h.engine.start(Expense, {"transport": "broker"})
            [envelope] = await side.received(1)
            poison = {body: code for body, code in poison_for(envelope).items() if side.carries(body)}
            for body in poison:
                await side.put(body)
            dead = await side.dead_letters(len(poison))
            await side.reply(envelope, YES)
            result = await expense.result(timeout=30)
            await side.reply(envelope, {"approved": False})
            again = await side.dead_letters(len(poison) + 1)

        assert result["approved"] is True
        assert sorted(letter.body for letter in dead) == sorted(poison)
        assert {body: headers["stepwell-reason-code"] for body, headers, _ in dead} == poison
        assert all(letter.headers["stepwell-reason"] for letter in dead)
        assert {*codes(again)} == {*poison.values(), "CompletionConflict"}

    async def test_a_broker_that_restarts_in_the_middle_loses_nothing(
        self, side: BrokerSide, make_harness: MakeHarness
    ) -> None:
        """Interactions sent before are completed after; those opened during the outage are sent after it."""
        h = await make_harness([Batch, Expense], transports=[hurried(side)])
        async with h.engine.worker(), answering(side, ITEMS + 1, begins_after=6) as provider:
            batch = await h.engine.start(Batch, {"items": list(range(ITEMS)), "window": 12, "transport": "broker"})
            await provider.answered(6)
            await side.fail()
            expense = await h.engine.start(Expense, {"transport": "broker", "amount": 7})
            await side.recover()
            provider.go_on()
            result = await batch.result(timeout=30)
            await expense.result(timeout=30)

        assert result == [[n, "completed", n] for n in range(ITEMS)]

    async def test_two_workers_share_completions_and_one_that_stops_loses_none(
        self, side: BrokerSide, make_harness: MakeHarness
    ) -> None:
        """A rebalance in the middle: the new owner may get again what the old one had, and it is a duplicate then."""
        h = await make_harness([Batch], transports=[side.make_transport()])
        other = Engine(h.url, machines=[Batch], transports=[side.make_transport()])
        async with h.engine.worker(), answering(side, ITEMS, begins_after=12) as provider:
            async with other, other.worker():
                batch = await h.engine.start(Batch, {"items": list(range(ITEMS)), "window": 12, "transport": "broker"})
                await provider.answered(12)
            provider.go_on()
            result = await batch.result(timeout=30)

        assert result == [[n, "completed", n] for n in range(ITEMS)]
        assert await side.dead_letters(0) == []

    async def test_workers_killed_around_the_completion_lose_and_repeat_nothing(
        self, side: BrokerSide, make_harness: MakeHarness
    ) -> None:
        """Scenarios 78 and 79: one dies while it has the completion, one between commit and acknowledgement."""
        h = await make_harness([Expense], transports=[side.make_transport()])
        async with killed_worker(h, side, "complete.found") as process:
            expense = await h.engine.start(Expense, {"transport": "broker"})
            [envelope] = await side.received(1)
            await side.reply(envelope, YES)
            assert await process.wait() == -signal.SIGKILL
        assert (await h.engine.interactions.get(envelope["interactionId"])).status.is_open

        async with killed_worker(h, side, "settle.admitted") as process:
            assert await process.wait() == -signal.SIGKILL
        admitted = await h.engine.interactions.get(envelope["interactionId"])
        with armed("settle.admitted") as again:
            async with h.engine.worker():
                await again.reached()  # the same completion came once more
                result = await expense.result(timeout=30)

        assert result["approved"] is True
        assert await h.engine.interactions.get(envelope["interactionId"]) == admitted  # the first one counts
        assert await side.dead_letters(0) == []

    async def test_a_request_that_is_too_large_for_the_broker_fails_its_interaction(self, side: BrokerSide) -> None:
        async with opened_one(side) as transport:
            with pytest.raises(Undeliverable, match="bytes"):
                await transport.send(make_dispatch(request="x" * 2_000_000))
            await transport.send(make_dispatch())

    async def test_a_dead_letter_that_cannot_be_written_is_kept_and_stops_no_other(self, side: BrokerSide) -> None:
        admissions = Admissions({"int-1": CompletionConflict("int-1")})
        for interaction in ("int-1", "int-2"):
            await side.answer(Answer(reply=1, interaction=interaction, tenant="acme"))
        async with opened_one(side) as transport:
            await side.refuse_dead_letters()
            async with admissions.received_by(transport):
                await admissions.admitted_all("int-2")
                await admissions.tried_some(3)  # int-1 once more
                await side.take_dead_letters()
                [dead] = await side.dead_letters(1)

        assert dead.document["interactionId"] == "int-1"
        assert dead.headers["stepwell-reason-code"] == "CompletionConflict"

    async def test_a_message_too_large_for_a_dead_letter_is_dead_lettered_in_part(self, side: BrokerSide) -> None:
        """With the reason added, it is larger than what the broker accepts: that stops no other message either."""
        admissions = Admissions()
        body = b"{" + b" " * (self.largest - 1)
        async with opened_one(side) as transport, admissions.received_by(transport):
            await side.put(body)
            [dead] = await side.dead_letters(1)
            await side.answer(Answer(reply=1, interaction="int-1", tenant="acme"))
            await admissions.admitted_all("int-1")

        assert dead.body == body[:65_536]
        assert dead.headers["stepwell-truncated"] == str(self.largest)
        assert dead.headers["stepwell-reason-code"] == "InvalidEnvelope"

    async def test_an_interaction_with_too_large_headers_fails_too(self, side: BrokerSide) -> None:
        async with opened_one(side) as transport:
            room = self.largest - len(write_interaction(make_dispatch(request="")))
            with pytest.raises(Undeliverable, match="bytes"):
                await transport.send(make_dispatch(request="x" * room))
            await transport.send(make_dispatch())

    async def test_a_missing_broker_is_reported_when_the_transport_is_opened(self, side: BrokerSide) -> None:
        transport = side.make_transport(**self.absent)

        with pytest.raises(SendFailed, match="does not answer"):
            await transport.open()

        with pytest.raises(SendFailed, match="closed"):
            await transport.send(make_dispatch())
        await transport.close()

    @pytest.mark.parametrize("field", ["requests", "responses", "dead_letters"])
    async def test_a_missing_destination_is_named_when_the_transport_is_opened(
        self, side: BrokerSide, field: str
    ) -> None:
        nowhere = self.nowhere(side)
        transport = side.make_transport(**{field: nowhere})

        with pytest.raises(UnknownDestination, match=r"there is no .*nowhere") as refused:
            await transport.open()

        assert (refused.value.transport, refused.value.destination) == ("broker", nowhere)
        await transport.close()

    def nowhere(self, side: BrokerSide) -> str:
        return "nowhere"


@asynccontextmanager
async def opened_one(side: BrokerSide, **changes: Any) -> AsyncIterator[Any]:
    """A transport of that side, open."""
    transport: Transport = side.make_transport(**changes)
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


class Provider:
    """The external system: completes each interaction once, up to a number, then waits for the test.

    While it waits it does not read: a broker that stops would break that off, or hide what was just handed over.
    """

    def __init__(self, side: BrokerSide, begins_after: int) -> None:
        self._side = side
        self._first = begins_after
        self._gate = asyncio.Event()
        self._done: set[str] = set()
        self._changed = asyncio.Condition()

    def go_on(self) -> None:
        self._gate.set()

    async def answered(self, number: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._done) >= number)

    async def run(self, number: int) -> None:
        seen = 0
        while len(self._done) < number:
            await self._allowed()
            envelopes = await self._side.received(seen + 1)
            for envelope in envelopes[seen:]:
                await self._answer(envelope)
            seen = len(envelopes)

    async def _answer(self, envelope: Mapping[str, Any]) -> None:
        if envelope["interactionId"] in self._done:
            return
        await self._allowed()
        asked = envelope["requestPayload"]
        await self._side.reply(envelope, asked.get("number", YES))
        async with self._changed:
            self._done.add(envelope["interactionId"])
            self._changed.notify_all()

    async def _allowed(self) -> None:
        if len(self._done) >= self._first:
            await self._gate.wait()


@asynccontextmanager
async def answering(side: BrokerSide, number: int, *, begins_after: int) -> AsyncIterator[Provider]:
    provider = Provider(side, begins_after)
    running = asyncio.create_task(provider.run(number))
    try:
        yield provider
        async with asyncio.timeout(30):
            await running
    finally:
        running.cancel()


@asynccontextmanager
async def killed_worker(h: Harness, side: BrokerSide, point: str) -> AsyncIterator[Forked]:
    """A worker process that dies at a point; it has started."""
    given = (h.url, side.kind, json.dumps(side.options), "--crash", point)
    process = await Forked.start("tests.features.transports.brokers.worker", given)
    try:
        assert await process.stdout.readline() == b"ready\n"
        async with asyncio.timeout(30):
            yield process
    finally:
        process.kill()
        await process.communicate()


def hurried(side: BrokerSide) -> Any:
    """A transport that does not wait for seconds between two tries."""
    transport = side.make_transport()
    transport.backoff = lambda attempt: timedelta(milliseconds=50 * attempt)  # type: ignore[method-assign]
    return transport


def poison_for(envelope: Mapping[str, Any]) -> dict[bytes, str]:
    """What may be where completions are expected, and the reason for its refusal."""
    right = {"tenantId": "acme", "interactionId": envelope["interactionId"], "responsePayload": YES}
    wrong: list[tuple[bytes | dict[str, Any], str]] = [
        (b"{", "InvalidEnvelope"),
        (b"[1]", "InvalidEnvelope"),
        (b"\xff\xfe", "InvalidEnvelope"),
        (b'{"tenantId":"acme","responsePayload":' + b"[" * 5000, "InvalidEnvelope"),
        ({**right, "tenantId": 7}, "InvalidEnvelope"),
        ({k: v for k, v in right.items() if k != "tenantId"}, "InvalidEnvelope"),
        ({k: v for k, v in right.items() if k != "responsePayload"}, "InvalidEnvelope"),
        ({**right, "interactionId": " "}, "InvalidEnvelope"),
        ({**right, "actor": ["ana"]}, "InvalidEnvelope"),
        ({**right, "interactionId": "the first"}, "InvalidInput"),
        ({**right, "actor": "a\0b"}, "InvalidInput"),
        ({**right, "responsePayload": {"approved": True, "note": "a\0b"}}, "InvalidPayload"),
        ({**right, "responsePayload": {"approved": "perhaps"}}, "InvalidReply"),
        ({**right, "responsePayload": None}, "InvalidReply"),
        ({**right, "resumeToken": "sw1.k.p.s"}, "InvalidToken"),
        ({**right, "interactionId": NOBODY}, "UnknownInteraction"),
        ({**right, "tenantId": "globex"}, "UnknownInteraction"),
    ]  # fmt: skip
    return {body if isinstance(body, bytes) else msgspec.json.encode(body): code for body, code in wrong}
