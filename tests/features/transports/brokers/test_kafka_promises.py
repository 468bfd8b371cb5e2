"""Kafka, over the wire to the mock cluster of librdkafka, under a real engine."""

from __future__ import annotations

from typing import ClassVar

import pytest

pytest.importorskip("confluent_kafka", reason='the extra "kafka" is not installed')

from tests.features.transports.brokers.kafka_side import KafkaSide
from tests.features.transports.brokers.promises import BrokerPromises


class TestPromises(BrokerPromises):
    @pytest.fixture
    def side(self, kafka: KafkaSide) -> KafkaSide:
        return kafka

    responds_by = "topic"
    largest = 1_000_000 - 100
    absent: ClassVar = {"brokers": "127.0.0.1:9"}
