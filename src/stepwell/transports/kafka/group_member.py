"""A member of a Kafka consumer group: the client's consumer, which may block, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

log = logging.getLogger("stepwell")

T = TypeVar("T")

LOOK: Final = 0.2  # seconds that the thread waits for a record, and so the longest time that leaving takes
COMMIT_EVERY: Final = 1_000  # milliseconds
ALL: Final = None  # partitions


class GroupMember:
    """One member of a group, for one topic. What follows `_in_thread` is called in the thread."""

    def __init__(self, transport: str, topic: str, config: Mapping[str, Any]) -> None:
        self._transport = transport
        self._topic = topic
        self._config = {
            "reconnect.backoff.max.ms": 1_000, "auto.commit.interval.ms": COMMIT_EVERY, **config, "logger": log,
            "enable.auto.commit": True, "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",  # completions from before the first consumer count too
        }  # fmt: skip
        self._thread = ThreadPoolExecutor(1, f"stepwell consumer of {transport}")
        self._consumer: Consumer
        self._paused: frozenset[int] | None = frozenset()
        self._has_moved = False  # partitions were assigned or revoked
        self.revoked: set[int] = set()  # partitions that other members have now; the caller empties it

    async def join(self) -> None:
        """Join the group."""
        self._consumer = Consumer(self._config)
        try:
            await self._in_thread(self._subscribe)
        except BaseException:
            await asyncio.shield(self.leave({}))
            raise

    async def take(self, settled: dict[int, int], waiting: frozenset[int] | None, most: int) -> list[Message]:
        """Store the settled offsets, pause partitions with waiting records, and take the next records."""
        return await self._in_thread(lambda: self._poll(settled, waiting, most))

    async def leave(self, settled: dict[int, int]) -> None:
        """Commit what is settled, and let other members have the partitions."""
        try:
            await self._in_thread(lambda: self._store(settled))
            await self._in_thread(self._consumer.close)
        finally:
            self._thread.shutdown(wait=False)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _subscribe(self) -> None:
        self._consumer.subscribe(
            [self._topic], on_assign=self._gain, on_revoke=self._lose, on_lost=self._lose
        )  # fmt: skip

    def _gain(self, _: Consumer, __: list[TopicPartition]) -> None:
        self._has_moved = True

    def _lose(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._has_moved = True
        self.revoked.update(place.partition for place in partitions)

    def _poll(self, settled: dict[int, int], waiting: frozenset[int] | None, most: int) -> list[Message]:
        self._store(settled)
        if waiting != self._paused or self._has_moved:
            self._pause(waiting)
        first = self._consumer.poll(LOOK)
        if first is None:
            return []
        taken = [first, *(self._consumer.consume(most - 1, 0) if most > 1 else ())]
        return [record for record in taken if self._is_record(record)]

    def _store(self, settled: dict[int, int]) -> None:
        for partition, end in settled.items():
            try:
                self._consumer.store_offsets(offsets=[TopicPartition(self._topic, partition, end)])
            except KafkaException as error:
                log.info("transport %s: partition %s went to others: %s", self._transport, partition, error)

    def _pause(self, waiting: frozenset[int] | None) -> None:
        self._has_moved, self._paused = False, waiting
        places = self._consumer.assignment()
        self._consumer.pause([place for place in places if waiting is ALL or place.partition in waiting])
        self._consumer.resume([place for place in places if waiting is not ALL and place.partition not in waiting])

    def _is_record(self, record: Message) -> bool:
        error = record.error()
        if error is None:
            return True
        if error.fatal():
            raise KafkaException(error)
        log.warning("transport %s: %s", self._transport, error.str())
        return False
