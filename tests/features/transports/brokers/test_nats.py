"""NATS JetStream, over a real server."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any, ClassVar

import pytest

pytest.importorskip("nats", reason='the extra "nats" is not installed')

from nats.js.api import AckPolicy, ConsumerConfig

from stepwell import UnknownDestination
from stepwell.testing import StreamConformance
from stepwell.testing.transports.recorder import Admissions
from stepwell.transports import Answer
from tests.conftest import MakeHarness
from tests.features.interactions.machines import Expense
from tests.features.transports.brokers.nats_side import NatsServer, NatsSide
from tests.features.transports.brokers.promises import BrokerPromises, killed_worker, opened_one
from tests.features.transports.brokers.sides import envelope
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("nats"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def side(server: NatsServer) -> AsyncIterator[NatsSide]:
    async with NatsSide(server) as side:
        yield side


class TestConformance(StreamConformance):
    @pytest.fixture(autouse=True)
    def _with(self, server: NatsServer) -> None:
        self.server = server

    def far_side(self) -> NatsSide:
        return NatsSide(self.server)


class TestPromises(BrokerPromises):
    responds_by = "subject"
    absent: ClassVar = {"servers": "nats://127.0.0.1:9"}


def answer_to(interaction: str) -> bytes:
    return envelope(Answer(reply=1, interaction=interaction, tenant="acme"))


@pytest.mark.parametrize("status", ["200", "408", "409"])
async def test_a_completion_with_a_header_like_the_servers_is_accepted(side: NatsSide, status: str) -> None:
    admissions = Admissions()
    async with opened_one(side, concurrency=1) as transport, admissions.received_by(transport):
        await side.put(answer_to("int-1"), Status=status, Description="Consumer Deleted")
        await side.put(answer_to("int-2"))
        await admissions.admitted_all("int-1", "int-2")


@pytest.mark.parametrize(("changes", "problem"), [
    ({"filter_subject": "{}.ask"}, "brings t.*ask"), ({"max_deliver": 5}, "gives completions up after 5 times"),
    ({"ack_policy": AckPolicy.NONE}, "does not ask for an acknowledgement"), ({"deliver_subject": "x"}, "pushes"),
])  # fmt: skip
async def test_a_consumer_that_would_lose_completions_is_refused(
    side: NatsSide, changes: dict[str, Any], problem: str
) -> None:
    """Such as that of another transport with the same name: no worker would receive the completions of this one."""
    right = {"filter_subject": "{}.say", "durable_name": "stepwell", "ack_policy": AckPolicy.EXPLICIT, **changes}
    right["filter_subject"] = right["filter_subject"].format(side.name)
    await side.context.add_consumer(side.name, ConsumerConfig(**right))

    with pytest.raises(UnknownDestination, match=f"{problem}.*durable= of its own"):
        await side.make_transport().open()


async def test_a_deleted_consumer_is_created_again(side: NatsSide, make_harness: MakeHarness) -> None:
    h = await make_harness([Expense], transports=[side.make_transport()])
    async with h.engine.worker():
        expense = await h.engine.start(Expense, {"transport": "broker"})
        [question] = await side.received(1)
        await eventually(lambda: side.context.consumer_info(side.name, "stepwell"))
        await side.context.delete_consumer(side.name, "stepwell")
        await side.reply(question, {"approved": True})

        assert (await expense.result(timeout=30))["approved"] is True


async def test_a_worker_killed_before_it_records_a_sending_sends_again(
    side: NatsSide, make_harness: MakeHarness
) -> None:
    """Scenario 82. JetStream drops what it takes for a duplicate message: this is a different one."""
    h = await make_harness([Expense], transports=[side.make_transport()], reap=timedelta(milliseconds=200))
    async with killed_worker(h, side, "dispatcher.sent") as process:
        await h.engine.start(Expense, {"transport": "broker"})
        assert await process.wait() == -signal.SIGKILL
    [first] = await side.received(1)

    async with h.engine.worker():
        second = (await side.received(2))[1]

    assert second == {**first, "attempt": 2}
