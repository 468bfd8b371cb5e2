"""SQS, over HTTP to moto's server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

import pytest

pytest.importorskip("aiobotocore", reason='the extra "sqs" is not installed')

from stepwell import UnknownInteraction
from stepwell.testing import StreamConformance
from stepwell.testing.transports.recorder import Admissions
from stepwell.transports import Answer
from tests.features.transports.brokers.promises import BrokerPromises, opened_one
from tests.features.transports.brokers.sides import BrokerSide
from tests.features.transports.brokers.sqs_side import SqsServer, SqsSide


@pytest.fixture(scope="module")
def server() -> Iterator[SqsServer]:
    server = SqsServer()
    yield server
    server.stop()


@pytest.fixture
async def side(server: SqsServer) -> AsyncIterator[SqsSide]:
    async with SqsSide(server) as side:
        yield side


class TestConformance(StreamConformance):
    @pytest.fixture(autouse=True)
    def _with(self, server: SqsServer) -> None:
        self.server = server

    def far_side(self) -> SqsSide:
        return SqsSide(self.server)


class TestPromises(BrokerPromises):
    responds_by = "queue"
    largest = 1_048_576 - 200  # above a mebibyte of HTTP, aiohttp warns
    absent: ClassVar = {"endpoint": "http://127.0.0.1:9"}

    def nowhere(self, side: BrokerSide) -> str:
        return str(side.options["requests"]).replace("-ask", "-nowhere")


async def test_a_completion_that_takes_long_stays_invisible_to_others(side: SqsSide) -> None:
    """Scenario 79: it would become visible after a second, and is processed for three."""
    admissions = Admissions({"int-1": [UnknownInteraction("int-1")] * 6})
    other = Admissions()
    slow: dict[str, Any] = {"visibility": 1.0, "every": 0.5, "concurrency": 1}
    async with opened_one(side, **slow) as first, admissions.received_by(first):
        await side.answer(Answer(reply=1, interaction="int-1", tenant="acme"))
        await admissions.tried_some(1)
        async with opened_one(side, **slow) as second, other.received_by(second):
            await admissions.admitted_all("int-1")

    assert other.tried == []


async def test_a_dead_letter_keeps_as_many_attributes_as_fit(side: SqsSide) -> None:
    async with opened_one(side) as transport, Admissions().received_by(transport):
        await side.put(b"{", **{f"a{n}": str(n) for n in range(10)})
        [dead] = await side.dead_letters(1)

    assert len(dead.headers) == 10
    assert dead.headers["a0"] == "0"
    assert dead.headers["stepwell-reason-code"] == "InvalidEnvelope"
    assert dead.headers["stepwell-origin-queue"] == side.url("say")
    assert dead.headers["stepwell-origin-message"]


async def test_no_more_messages_are_in_flight_than_declared(side: SqsSide) -> None:
    """Scenario 79."""
    admissions = Admissions(hangs=True)
    for number in range(12):
        await side.answer(Answer(reply=1, interaction=f"int-{number}", tenant="acme"))
    async with opened_one(side, batch=3, concurrency=2) as transport, admissions.received_by(transport):
        await admissions.tried_some(6)
        await side.dead_letters(0)  # a request and its response, in which others could have come

    assert len(admissions.tried) == 6
