"""Brokers as a file describes them become the transports that Python makes of the same."""

from __future__ import annotations

from pathlib import Path

from stepwell.pipelines import load
from stepwell.transports.kafka.transport import Kafka
from stepwell.transports.nats.transport import Nats
from stepwell.transports.sqs.transport import Sqs
from tests.features.pipelines.written import TRANSPORT, prices, refused

KAFKA = "{type: kafka, request: {topic: ask, key: correlationId}, response: {topic: say}, consumer: {group: us}}"
SQS = "{type: sqs, request: {queueUrl: https://sqs.test/1/ask}, response: {queueUrl: https://sqs.test/1/say}}"
NATS = "{type: nats, request: {subject: pay.ask}, response: {subject: pay.say}, consumer: {durable: us}}"


def test_a_file_can_declare_a_kafka_transport(tmp_path: Path) -> None:
    path = prices(tmp_path, (TRANSPORT, KAFKA))

    [transport] = load(path, transports={"kafka": {"brokers": "host:9092"}}).transports

    assert isinstance(transport, Kafka)
    assert (transport._requests, transport._responses, transport._group, transport._key) == (
        "ask", "say", "us", "correlationId",
    )  # fmt: skip
    assert "Kafka needs brokers=, which does not belong in a file" in str(refused(path))


def test_a_file_can_declare_a_nats_transport(tmp_path: Path) -> None:
    path = prices(tmp_path, (TRANSPORT, NATS))

    [transport] = load(path, transports={"nats": {"servers": "nats://host:4222"}}).transports

    assert isinstance(transport, Nats)
    assert (transport._requests, transport._responses, transport._durable) == ("pay.ask", "pay.say", "us")
    assert "Nats needs servers=, which does not belong in a file" in str(refused(path))


def test_a_file_can_declare_an_sqs_transport(tmp_path: Path) -> None:
    path = prices(tmp_path, (TRANSPORT, SQS))

    [transport] = load(path).transports

    assert isinstance(transport, Sqs)
    assert (transport._requests, transport._responses) == ("https://sqs.test/1/ask", "https://sqs.test/1/say")
