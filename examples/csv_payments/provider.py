"""The payment provider, in its own process: `python -m examples.csv_payments.provider --reject 0.08`.

It knows nothing of Stepwell but the envelopes (docs/reference/envelopes.md). It commits its offsets after its replies
have arrived: killed at any point, it repeats some replies with the same content.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from confluent_kafka import Consumer, KafkaException, Message, Producer

from examples.csv_payments.records import PaymentRecord
from examples.csv_payments.rules import is_hit, judge

log = logging.getLogger("provider")

REQUESTS: Final = "csv-payments.payment.requests"
RESULTS: Final = "csv-payments.payment.results"
NAME: Final = "csv-payments-mock-provider"
RESPONSE_TOPIC: Final = "stepwell-response-topic"
BATCH: Final = 200
LOOK: Final = 0.2  # seconds


class Interaction(msgspec.Struct, frozen=True, rename="camel"):
    """The part of an interaction's envelope that a provider needs."""

    tenant_id: str
    interaction_id: str
    correlation_id: str
    request_payload: PaymentRecord
    resume_token: str | None = None
    attempt: int = 1


class Provider:
    """Reads interactions, and replies to each."""

    def __init__(self, options: argparse.Namespace) -> None:
        settings = {"bootstrap.servers": options.brokers, "log_level": 3, **options.config}
        self._options = options
        self._producer = Producer({**settings, "acks": "all", "linger.ms": 2})
        self._consumer = Consumer({
            "session.timeout.ms": 6_000, **settings, "group.id": NAME, "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        })  # fmt: skip
        self._ledger = None if options.ledger is None else options.ledger.open("ab")
        self._next_at = time.monotonic()

    def run(self) -> None:
        """Reply until told to end."""
        self._consumer.subscribe([REQUESTS])
        try:
            while True:
                self._complete_each(self._take())
        finally:
            self._consumer.close()

    def _take(self) -> list[Message]:
        """The next interactions: wait for one, and take those that are already there."""
        first = self._consumer.poll(LOOK)
        records = [] if first is None else [first, *self._consumer.consume(self._batch - 1, 0)]
        for record in records:
            if (error := record.error()) is not None and error.fatal():
                raise KafkaException(error)
        return [record for record in records if record.error() is None]

    @property
    def _batch(self) -> int:
        """With a rate, no more than a tenth of a second's."""
        return BATCH if self._options.rate is None else max(2, min(BATCH, int(self._options.rate / 10)))

    def _complete_each(self, records: Sequence[Message]) -> None:
        """Record what was read, reply to it, and commit the offsets when the replies have arrived."""
        if not records:
            return
        interactions = [(record, interaction) for record in records if (interaction := _read(record)) is not None]
        self._note([interaction for _, interaction in interactions])
        for record, interaction in interactions:
            if not is_hit(interaction.request_payload.csv_id, "provider-timeout", self._options.timeout):
                self._pace()
                self._publish(record, interaction)
        if left := self._producer.flush(30):
            raise KafkaException(f"{left} replies were not delivered")
        self._consumer.commit(asynchronous=False)

    def _pace(self) -> None:
        """Wait until the rate allows one more."""
        if self._options.rate is not None:
            self._next_at = max(self._next_at, time.monotonic() - 0.1) + 1 / self._options.rate
            time.sleep(max(0.0, self._next_at - time.monotonic()))

    def _publish(self, record: Message, interaction: Interaction) -> None:
        completion = {
            "tenantId": interaction.tenant_id, "interactionId": interaction.interaction_id,
            "correlationId": interaction.correlation_id, "resumeToken": interaction.resume_token,
            "idempotencyKey": interaction.interaction_id, "actor": NAME,
            "responsePayload": judge(interaction.request_payload, self._options.reject),
        }  # fmt: skip
        self._producer.produce(_topic(record), msgspec.json.encode(completion), interaction.correlation_id)
        self._producer.poll(0)

    def _note(self, interactions: Sequence[Interaction]) -> None:
        """One line per interaction that was read: its id and its payment."""
        if self._ledger is not None:
            lines = [f"{q.interaction_id} {q.request_payload.csv_id}\n" for q in interactions]
            self._ledger.write("".join(lines).encode())
            self._ledger.flush()


def _read(record: Message) -> Interaction | None:
    try:
        return msgspec.json.decode(record.value() or b"", type=Interaction)
    except msgspec.DecodeError as error:
        log.warning("partition %s, offset %s is not an interaction: %s", record.partition(), record.offset(), error)
        return None


def _topic(record: Message) -> str:
    """The topic of the reply."""
    headers: Any = record.headers() or ()
    return next((value.decode() for name, value in headers if name == RESPONSE_TOPIC), RESULTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", default=os.environ.get("KAFKA_BROKERS", "127.0.0.1:9092"))
    parser.add_argument("--reject", type=float, default=0.0, help="the share of payments that is rejected, 0 to 1")
    parser.add_argument("--timeout", type=float, default=0.0, help="the share without a reply")
    parser.add_argument("--rate", type=float, help="replies per second, at most")
    parser.add_argument("--ledger", type=Path, help="a file that gets a line for every interaction that is read")
    parser.add_argument("--config", type=json.loads, default={}, help="settings of librdkafka, as JSON")
    logging.basicConfig(format="%(asctime)s provider: %(message)s")
    provider = Provider(parser.parse_args())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    provider.run()


if __name__ == "__main__":
    main()
