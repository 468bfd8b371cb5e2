"""The other end of a transport over Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from stepwell.transports import Kafka
from tests.features.transports.brokers.clusters import Cluster
from tests.features.transports.brokers.sides import BrokerSide, Letter
from tests.features.transports.brokers.worker import read_options

_numbers = count()
PARTITIONS = 2
# Without these the broker of a test is asked for half a second whether there is something new, left alone for as long
# after an error, and, after a restart, found again from the beginning, which takes two seconds. A session of less
# than a second ends by itself: librdkafka looks every half second whether it has to be heard.
HURRIED = {
    "log_level": 0, "reconnect.backoff.max.ms": 100, "fetch.wait.max.ms": 20, "fetch.error.backoff.ms": 20,
    "metadata.recovery.strategy": "none",
}  # fmt: skip


class KafkaSide(BrokerSide):
    """Topics of its own for each test."""

    kind = "Kafka"

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.name = f"t{next(_numbers)}"
        self._readers: dict[str, Reader] = {}
        self._producer = Producer({"bootstrap.servers": cluster.address, "linger.ms": 0, "log_level": 0})

    async def __aenter__(self) -> Self:
        for topic in ("ask", "say", "say.dead"):
            self.cluster.create(f"{self.name}.{topic}", PARTITIONS)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for reader in self._readers.values():
            reader.close()

    @property
    def options(self) -> dict[str, Any]:
        return {
            "brokers": self.cluster.address, "requests": f"{self.name}.ask", "responses": f"{self.name}.say",
            "group": self.name, "every": 0.005, "timeout": 2.0,
            "config": {"session.timeout.ms": 1000, "heartbeat.interval.ms": 100, "linger.ms": 0, **HURRIED},
        }  # fmt: skip

    def make_transport(self, **changes: Any) -> Kafka:
        return Kafka("broker", **read_options({**self.options, **changes}))

    async def letters(self, number: int) -> Sequence[Letter]:
        return await self.read(f"{self.name}.ask", number)

    async def dead_letters(self, number: int) -> Sequence[Letter]:
        return await self.read(f"{self.name}.say.dead", number)

    async def put(self, body: bytes, **options: Any) -> None:
        self._producer.produce(f"{self.name}.say", body, **options)
        await asyncio.to_thread(self._producer.flush, 30)

    async def refuse_dead_letters(self) -> None:
        self.cluster.refuse_next_records(KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED)

    async def fail(self) -> None:
        self.cluster.stop()

    async def recover(self) -> None:
        self.cluster.start()

    async def read(self, topic: str, number: int) -> Sequence[Letter]:
        if topic not in self._readers:
            self._readers[topic] = Reader(self.cluster.address, topic)
        return await asyncio.to_thread(self._readers[topic].read, number)


class Reader:
    """All records of a topic, in the order of their times."""

    def __init__(self, address: str, topic: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": address, "group.id": "reader", **HURRIED})
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        self._found: list[tuple[int, int, Letter]] = []
        self._is_closed = False

    def read(self, number: int) -> list[Letter]:
        while not self._is_closed:
            record = self._consumer.poll(0.1 if len(self._found) < number else 0.05)
            if record is not None and record.error() is None:
                came: Any = record.headers() or ()
                headers = {name: value.decode(errors="replace") for name, value in came}
                letter = Letter(record.value() or b"", headers, record.key())
                self._found.append((record.timestamp()[1], len(self._found), letter))
            elif len(self._found) >= number:
                break
        return [letter for _, _, letter in sorted(self._found, key=lambda found: found[:2])]

    def close(self) -> None:
        self._is_closed = True
        self._consumer.close()
