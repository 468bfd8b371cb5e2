"""Kafka's interactions: an idempotent producer, served by a thread, awaited in the event loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from stepwell.errors import SendFailed, Undeliverable, UnknownDestination

log = logging.getLogger("stepwell")

Headers: TypeAlias = Sequence[tuple[str, str | bytes | None]]

SERVED_EVERY: Final = 0.2  # seconds, if nothing happens; events wake the thread at once
LATE: Final = 1.0  # seconds that librdkafka, which looks every second, may take longer to give a record up
LONGEST_LOOK: Final = 10.0  # seconds, for the list of topics


class Producing:
    """One producer. If librdkafka gives it up for good, the next interaction gets a new one."""

    def __init__(self, name: str, config: Mapping[str, Any], timeout: float) -> None:
        self.name = name
        self._config = {
            "reconnect.backoff.max.ms": 1_000, "delivery.timeout.ms": int(timeout * 1_000), **config, "acks": "all",
            "enable.idempotence": True, "logger": log, "error_cb": self._note,
        }  # fmt: skip
        self._timeout = timeout
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_broken = False
        self._replacing = asyncio.Lock()
        self._waiting: set[asyncio.Future[dict[str, Any]]] = set()
        self._producer: Producer

    async def open(self, *topics: str) -> None:
        """Connect, and check that the topics exist."""
        self._loop = asyncio.get_running_loop()
        self._producer = self._make()
        try:
            known = await asyncio.to_thread(self._list_topics)
        except KafkaException as error:
            raise SendFailed(f"{self.name}: Kafka does not answer: {_error_text(error)}") from error
        for topic in topics:
            if topic not in known:
                hint = f"make it: kafka-topics.sh --create --topic {topic}"
                raise UnknownDestination(self.name, "topic", topic, hint)
        self._thread = threading.Thread(target=self._serve, name=f"stepwell producer of {self.name}", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Deliver the records in flight, each within its timeout."""
        thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.to_thread(self._flush)
            self._stopping.set()
            await asyncio.to_thread(thread.join)
        for delivered in self._waiting:
            _fail(delivered, SendFailed("the transport was closed"))

    async def publish(self, topic: str, body: bytes | None, key: bytes | None, headers: Headers) -> dict[str, Any]:
        """Produce one record, and wait until all replicas in sync have it; returns where."""
        if self._is_broken:
            await self._replace()
        delivered: asyncio.Future[dict[str, Any]] = self._loop.create_future()
        try:
            self._producer.produce(
                topic, body, key, headers=list(headers), on_delivery=partial(self._deliver, delivered)
            )
        except BufferError as error:
            raise SendFailed(f"{topic}: the producer's queue is full") from error
        except KafkaException as error:
            raise self._failure(topic, error.args[0], len(body or b"")) from error
        self._waiting.add(delivered)
        delivered.add_done_callback(self._waiting.discard)
        try:
            async with asyncio.timeout(self._timeout + LATE):
                return await delivered
        except TimeoutError:
            self._is_broken = True  # what it holds could be sent at any later time
            raise SendFailed(f"{topic}: Kafka did not confirm it within {self._timeout:g} s") from None

    async def _replace(self) -> None:
        async with self._replacing:
            if self._is_broken:
                broken, self._producer, self._is_broken = self._producer, self._make(), False
                await asyncio.to_thread(_empty, broken)

    def _make(self) -> Producer:
        try:
            return Producer(self._config)
        except KafkaException as error:
            raise SendFailed(f"{self.name}: {_error_text(error)}") from error

    def _list_topics(self) -> set[str]:
        """All of them: to ask for one by name would create it, on many clusters.

        Then one that exists: the second reply comes over the connection that stays, and lets librdkafka ask for
        the producer's id at once. Otherwise it looks every half second.
        """
        found = self._producer.list_topics(timeout=min(self._timeout, LONGEST_LOOK))
        known = {name for name, topic in found.topics.items() if topic.error is None}
        if known:
            self._producer.list_topics(min(known), timeout=min(self._timeout, LONGEST_LOOK))
        return known

    def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                self._producer.poll(SERVED_EVERY)
            except KafkaException as error:  # errors that end the producer are raised here
                self._note(error.args[0])

    def _flush(self) -> None:
        with suppress(KafkaException):
            self._producer.flush(self._timeout)
        if len(self._producer):
            _empty(self._producer)  # otherwise its deallocation waits for it

    def _note(self, error: KafkaError) -> None:
        """Called in the thread."""
        log.info("transport %s: %s", self.name, error.str())
        self._is_broken = self._is_broken or _is_fatal(error)

    def _deliver(self, delivered: asyncio.Future[dict[str, Any]], error: KafkaError | None, record: Message) -> None:
        """Called in the thread."""
        self._loop.call_soon_threadsafe(self._resolve, delivered, error, record)

    def _resolve(self, delivered: asyncio.Future[dict[str, Any]], error: KafkaError | None, record: Message) -> None:
        if error is not None:
            _fail(delivered, self._failure(str(record.topic()), error, len(record.value() or b"")))
        elif not delivered.done():
            delivered.set_result({"partition": record.partition(), "offset": record.offset()})

    def _failure(self, topic: str, error: KafkaError, size: int) -> SendFailed | Undeliverable:
        self._is_broken = self._is_broken or _is_fatal(error)
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return Undeliverable(f"{size:,} bytes are more than topic {topic} takes")
        return SendFailed(f"{topic}: {error.str()}")


def _is_fatal(error: KafkaError) -> bool:
    return error.fatal() or error.code() == KafkaError._FATAL  # noqa: SLF001 - local codes are named so


def _empty(broken: Producer) -> None:
    """Fail all pending deliveries of a broken producer."""
    broken.purge()
    for _ in range(2):  # the first call may raise the error that ended the producer
        with suppress(KafkaException):
            broken.flush(1)


def _fail(delivered: asyncio.Future[dict[str, Any]], error: Exception) -> None:
    if not delivered.done():
        delivered.set_exception(error)


def _error_text(error: KafkaException) -> str:
    return str(error.args[0].str() if error.args and isinstance(error.args[0], KafkaError) else error)
