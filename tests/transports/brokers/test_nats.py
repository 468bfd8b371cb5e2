"""NATS JetStream, over a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import ClassVar

import pytest

pytest.importorskip("nats", reason='the extra "nats" is not installed')

from stepwell.testing import StreamConformance
from tests.transports.brokers.nats_side import NatsServer, NatsSide
from tests.transports.brokers.promises import BrokerPromises


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
