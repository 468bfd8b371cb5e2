"""Kafka, over the wire to the mock cluster of librdkafka: the conformance suite."""

from __future__ import annotations

import pytest

pytest.importorskip("confluent_kafka", reason='the extra "kafka" is not installed')

from stepwell.testing import StreamConformance
from tests.features.transports.brokers.clusters import Cluster
from tests.features.transports.brokers.kafka_side import KafkaSide


class TestConformance(StreamConformance):
    @pytest.fixture(autouse=True)
    def _with(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def far_side(self) -> KafkaSide:
        return KafkaSide(self.cluster)
