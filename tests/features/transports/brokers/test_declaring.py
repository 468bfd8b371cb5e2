"""How transports over brokers are declared, and what is refused there."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from stepwell import DefinitionError, transports

RIGHT: dict[str, dict[str, Any]] = {
    "Kafka": {"brokers": "127.0.0.1:9092", "requests": "pay.ask", "responses": "pay.say", "group": "shop"},
    "Sqs": {"requests": "https://sqs.example/1/ask", "responses": "https://sqs.example/1/say"},
    "Nats": {"servers": "nats://127.0.0.1:4222", "requests": "pay.ask", "responses": "pay.say"},
}
CLIENTS = {"Sqs": ("aiobotocore", "sqs"), "Kafka": ("confluent_kafka", "kafka"), "Nats": ("nats", "nats")}
COMMON: list[tuple[dict[str, Any], str, str]] = [
    ({"requests": ""}, "requests", "expected"),
    ({"requests": None}, "requests", "expected"),
    ({"responses": 7}, "responses", "expected"),
    ({"dead_letters": "a b"}, "dead_letters", "expected"),
    ({"headers": {"stepwell-tenant-id": "x"}}, "headers", "set by the transport"),
    ({"headers": {"X Key": "a"}}, "headers", "X Key"),
    ({"headers": {"x": "a\r\nb"}}, "headers", "x"),
    ({"headers": {"x": 7}}, "headers", "x"),
    ({"tries": -1}, "tries", "from 1"),
    ({"tries": True}, "tries", "from 1"),
    ({"tries": 1_000_000}, "tries", "at most"),
    ({"every": 0.1}, "every", "timedelta"),
    ({"every": timedelta(0)}, "every", "above 0"),
    ({"timeout": timedelta(days=1)}, "timeout", "at most"),
    ({"max_in_flight": 0}, "max_in_flight", "from 1"),
]
FIFO = "https://sqs.example/1/ask.fifo"
OWN: list[tuple[str, dict[str, Any], str, str]] = [
    *(("Sqs", {field: f"{FIFO}{end}"}, field, "FIFO") for field in ("requests", "responses", "dead_letters")
      for end in ("", "?x=1", "#part", "?x#y", "/", "%3Fx")),
    ("Sqs", {"requests": "https://sqs.example/1/ask%2Efifo"}, "requests", "FIFO"),
    ("Sqs", {"requests": "https://sqs.example/1/ask?x"}, "requests", "URL of a queue"),
    ("Sqs", {"requests": "https://me:secret@sqs.example/1/ask"}, "requests", "URL of a queue"),
    ("Sqs", {"requests": "ask"}, "requests", "URL of a queue"),
    ("Sqs", {"requests": "ftp://sqs.example/1/ask"}, "requests", "URL of a queue"),
    ("Sqs", {"responses": "https://sqs.example/1/ask"}, "dead_letters", "a queue each"),
    ("Sqs", {"headers": {"a": "1", "b": "2", "c": "3", "d": "4"}}, "headers", "ten"),
    ("Sqs", {"headers": {"a": ""}}, "headers", "not empty"),
    ("Sqs", {"headers": {"a$": "x"}}, "headers", "letters"),
    ("Sqs", {"headers": {"AWS.x": "x"}}, "headers", "set by the transport"),
    ("Sqs", {"visibility": timedelta(milliseconds=1500)}, "visibility", "whole seconds"),
    ("Sqs", {"visibility": timedelta(hours=13)}, "visibility", "at most"),
    ("Sqs", {"wait": timedelta(seconds=21)}, "wait", "at most"),
    ("Sqs", {"wait": timedelta(0)}, "wait", "above 0"),
    ("Sqs", {"batch": 11}, "batch", "at most"),
    ("Sqs", {"concurrency": 0}, "concurrency", "from 1"),
    ("Kafka", {"brokers": ""}, "brokers", "expected"),
    ("Kafka", {"requests": "pay/ask"}, "requests", "letters"),
    ("Kafka", {"requests": ".."}, "requests", "letters"),
    ("Kafka", {"responses": "pay.ask"}, "dead_letters", "a topic each"),
    ("Kafka", {"group": " "}, "group", "expected"),
    ("Kafka", {"key": "orderId"}, "key", "correlationId"),
    ("Kafka", {"batch": 0}, "batch", "from 1"),
    ("Kafka", {"config": {"enable.auto.commit": False}}, "config", "set by the transport"),
    ("Nats", {"servers": []}, "servers", "nats://"),
    ("Nats", {"servers": [7]}, "servers", "nats://"),
    ("Nats", {"servers": None}, "servers", "iterable"),
    ("Nats", {"requests": "pay.*"}, "requests", "wildcards"),
    ("Nats", {"responses": "pay.>"}, "responses", "wildcards"),
    ("Nats", {"responses": "pay.ask"}, "dead_letters", "a subject each"),
    ("Nats", {"durable": "a.b"}, "durable", "letters"),
    ("Nats", {"headers": {"Nats-Msg-Id": "x"}}, "headers", "set by the transport"),
    ("Nats", {"ack_wait": timedelta(seconds=3)}, "ack_wait", "tries x every"),
    ("Nats", {"concurrency": 0}, "concurrency", "from 1"),
    ("Nats", {"wait": "5 s"}, "wait", "timedelta"),
]


def require(kind: str) -> None:
    pytest.importorskip(CLIENTS[kind][0], reason=f'the extra "{CLIENTS[kind][1]}" is not installed')


@pytest.mark.parametrize("kind", RIGHT)
def test_a_broker_transport_is_declared_by_its_two_destinations(kind: str) -> None:
    require(kind)

    made = getattr(transports, kind)("payments", **RIGHT[kind], headers={"x-team": "shop"}, max_in_flight=7, tries=0)

    assert (made.name, made.max_in_flight, made.sends) == ("payments", 7, True)


@pytest.mark.parametrize("kind", RIGHT)
def test_a_send_timeout_of_the_transport_overrides_that_of_the_engine(kind: str) -> None:
    """Its error says more; and an author who allows hours for a sending gets hours."""
    require(kind)
    long = timedelta(hours=12)

    usual, patient = [getattr(transports, kind)("p", **RIGHT[kind], **given) for given in ({}, {"timeout": long})]

    assert usual.send_timeout == transports.Transport.send_timeout
    assert patient.send_timeout > long


@pytest.mark.parametrize(
    ("kind", "changes", "field", "problem"), [*((kind, *case) for kind in RIGHT for case in COMMON), *OWN]
)
def test_an_invalid_option_is_refused_with_its_field(
    kind: str, changes: dict[str, Any], field: str, problem: str
) -> None:
    require(kind)

    with pytest.raises(DefinitionError) as refused:
        getattr(transports, kind)("payments", **{**RIGHT[kind], **changes})

    assert str(refused.value).startswith(f"{kind}('payments'): {field}: ")
    assert problem in str(refused.value)


@pytest.mark.parametrize("kind", RIGHT)
def test_a_missing_extra_is_reported_only_when_a_transport_is_created(kind: str) -> None:
    client, extra = CLIENTS[kind]
    script = (
        f"import sys; sys.modules[{client!r}] = None\n"
        "from stepwell import MissingExtra, transports\n"
        f"try: transports.{kind}('p', **{RIGHT[kind]!r})\n"
        "except MissingExtra as error: print(error)\n"
    )

    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert f"pip install 'stepwell[{extra}]'" in ran.stdout
