"""Kafka: each interaction is a record in a topic, each completion a record that a consumer group brings back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

from stepwell._core.interaction import Dispatch
from stepwell.errors import SendFailed
from stepwell.transports.base import Admit, Transport, outlasting
from stepwell.transports.broker.envelope import write_headers, write_interaction
from stepwell.transports.broker.options import (
    Options,
    import_client,
    read_author_headers,
    read_number,
    read_text,
    read_time,
)

if TYPE_CHECKING:
    from stepwell.transports.kafka.producer import Producing

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_KEYS: Final = ("interactionId", "correlationId")
OURS: Final = frozenset({
    "acks", "auto.offset.reset", "bootstrap.servers", "enable.auto.commit", "enable.auto.offset.store",
    "enable.idempotence", "group.id", "logger", "metadata.broker.list", "request.required.acks",
})  # fmt: skip


class Kafka(Transport):
    """Asks over topics: `Kafka("payments", brokers="host:9092", requests="pay.ask", responses="pay.say", group="us")`.

    The topics have to exist. A completion's offset is committed after it was admitted; a refused one goes to
    `dead_letters`, with the reason. Needs the extra "kafka".
    """

    def __init__(
        self, name: str,
        *, brokers: str, requests: str, responses: str, group: str,
        key: Literal["interactionId", "correlationId"] = "interactionId", dead_letters: str | None = None,
        headers: Mapping[str, str] | None = None, tries: int = 30, every: timedelta = timedelta(milliseconds=100),
        timeout: timedelta = timedelta(seconds=30), batch: int = 100, max_in_flight: int = 200,
        config: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        options = Options("Kafka", name)
        self._producers = import_client("stepwell.transports.kafka.producer", "kafka", "Kafka")
        self._consumers = import_client("stepwell.transports.kafka.consumer", "kafka", "Kafka")
        self._brokers = options.read("brokers", read_text, brokers)
        self._requests = options.read("requests", _read_topic, requests)
        self._responses = options.read("responses", _read_topic, responses)
        self._dead_letters = options.read("dead_letters", _read_topic, dead_letters or f"{responses}.dead")
        if len({self._requests, self._responses, self._dead_letters}) < 3:  # noqa: PLR2004 - all are different
            raise options.error("dead_letters", "requests, responses and dead letters need a topic each")
        self._group = options.read("group", read_text, group)
        self._key = options.read("key", _read_key, key)
        self._headers = options.read("headers", read_author_headers, headers)
        self._retries = options.read_retries(tries, every)
        self._timeout = options.read("timeout", read_time, timeout)
        self.send_timeout = outlasting(self._timeout)
        self._batch = options.read("batch", read_number, batch)
        self.max_in_flight = options.read("max_in_flight", read_number, max_in_flight)
        self._config = options.read("config", _read_config, config or {})
        self._producing: Producing | None = None

    async def open(self) -> None:
        if self._producing is None:
            producing = self._producers.Producing(
                self.name, {**self._config, "bootstrap.servers": self._brokers}, self._timeout.total_seconds()
            )
            await producing.open(self._requests, self._responses, self._dead_letters)
            self._producing = producing

    async def close(self) -> None:
        producing, self._producing = self._producing, None
        if producing is not None:
            await producing.close()

    async def send(self, dispatch: Dispatch, /) -> Mapping[str, Any]:
        key = dispatch.interaction_id if self._key == "interactionId" else dispatch.correlation_id
        headers = write_headers(dispatch, self._headers, topic=self._responses)
        record = await self._opened().publish(
            self._requests, write_interaction(dispatch), key.encode(), [(name, text) for name, text in headers.items()]
        )
        return {"requestTopic": self._requests, "responseTopic": self._responses, "key": key, **record}

    async def receive(self, admit: Admit, /) -> None:
        consumer = self._consumers.CompletionConsumer(
            self._opened(), admit, self._retries, responses=self._responses, dead_letters=self._dead_letters,
            config={**self._config, "bootstrap.servers": self._brokers, "group.id": self._group},
        )  # fmt: skip
        await consumer.run(self._batch)

    def _opened(self) -> Producing:
        if self._producing is None:
            raise SendFailed("the transport is closed")
        return self._producing


def _read_topic(topic: object) -> str:
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic) or topic in (".", ".."):
        raise ValueError(f"expected a topic of letters, digits, dots, - and _, got {topic!r}")
    return topic


def _read_key(key: object) -> str:
    if key not in _KEYS:
        raise ValueError(f"expected {_KEYS[0]!r} or {_KEYS[1]!r}, got {key!r}")
    return str(key)


def _read_config(config: Mapping[str, Any]) -> dict[str, Any]:
    for name in config:
        if name in OURS:
            raise ValueError(f"{name!r} is set by the transport itself")  # the value may be a secret
    return dict(config)
