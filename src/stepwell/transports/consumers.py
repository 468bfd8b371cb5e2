"""Kafka's way back: a member of a consumer group, in a thread of its own; answers are settled in the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from stepwell.transports.base import Admit
from stepwell.transports.producers import Producing
from stepwell.transports.settling import Patience, Refusal, pause_after, put_aside, settle

log = logging.getLogger("stepwell")

T = TypeVar("T")

LOOK: Final = 0.2  # seconds: how long the thread waits for a record, and so how long leaving takes at most
SLOW: Final = 1.0  # seconds after which a batch is slow: Kafka has to hear from us while it lasts
COMMIT_EVERY: Final = 1_000  # milliseconds
OWN: Final = ("stepwell-reason", "stepwell-origin", "stepwell-truncated")


class Consuming:
    """One member of a group. Records with the same key are settled one after the other, others at the same time.

    An offset is stored when all before it are settled; stored offsets are committed every second, when partitions go
    to others, and at the end.
    """

    def __init__(
        self, producing: Producing, admit: Admit, patience: Patience, *, responses: str, dead_letters: str,
        config: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self._producing = producing
        self._admit = admit
        self._patience = patience
        self._responses = responses
        self._dead_letters = dead_letters
        self._config = {
            "reconnect.backoff.max.ms": 1_000, "auto.commit.interval.ms": COMMIT_EVERY, **config, "logger": log,
            "enable.auto.commit": True, "enable.auto.offset.store": False,
            "auto.offset.reset": "earliest",  # what was answered before anybody listened counts too
        }  # fmt: skip
        self._thread = ThreadPoolExecutor(1, f"stepwell consumer of {producing.name}")
        self._consumer: Consumer

    async def run(self, batch: int) -> None:
        """Bring answers in until cancelled."""
        self._consumer = Consumer(self._config)
        try:
            await self._call(lambda: self._consumer.subscribe([self._responses]))
            while True:
                records = await self._call(lambda: self._take(batch))
                while records:
                    records = await self._settle(records)
        finally:
            await asyncio.shield(self._leave())

    async def _leave(self) -> None:
        """Commit what is stored, and let others have the partitions."""
        try:
            await self._call(self._consumer.close)
        finally:
            self._thread.shutdown(wait=False)

    async def _call(self, ask: Callable[[], T]) -> T:
        """Ask the consumer, in its thread: it may block."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, ask)

    def _take(self, most: int) -> list[Message]:
        """The next records: wait for one, and take along what is there. Called in the thread."""
        first = self._consumer.poll(LOOK)
        if first is None:
            return []
        taken = [first, *(self._consumer.consume(most - 1, 0) if most > 1 else ())]
        return [record for record in taken if self._is_answer(record)]

    def _is_answer(self, record: Message) -> bool:
        error = record.error()
        if error is None:
            return True
        if error.fatal():
            raise KafkaException(error)
        log.warning("transport %s: %s", self._producing.name, error.str())
        return False

    async def _settle(self, records: list[Message]) -> list[Message]:
        """Settle a batch and store how far it goes; returns what came meanwhile."""
        settling = asyncio.create_task(self._settle_all(records))
        try:
            await asyncio.wait([settling], timeout=SLOW)
            meanwhile = [] if settling.done() else await self._stay(settling)
            await settling
        finally:
            settling.cancel()
        await self._call(lambda: self._store(records))
        return meanwhile

    async def _stay(self, settling: asyncio.Task[None]) -> list[Message]:
        """Show Kafka that we live while a batch takes long, and take no more; what comes all the same is kept."""
        kept: list[Message] = []
        while not settling.done():
            await self._call(self._pause)
            kept += await self._call(lambda: self._take(1))
        await self._call(self._resume)
        return kept

    def _pause(self) -> None:
        self._consumer.pause(self._consumer.assignment())

    def _resume(self) -> None:
        self._consumer.resume(self._consumer.assignment())

    def _store(self, records: list[Message]) -> None:
        """Called in the thread. Partitions that others have by now are theirs: they settle it once more."""
        ends: dict[int, int] = {}
        for record in records:
            partition, offset = record.partition(), record.offset()
            assert partition is not None and offset is not None  # noqa: S101, PT018 - a record that came has both
            ends[partition] = max(offset + 1, ends.get(partition, 0))
        for partition, end in ends.items():
            try:
                self._consumer.store_offsets(offsets=[TopicPartition(self._responses, partition, end)])
            except KafkaException as error:
                log.info("transport %s: partition %s went to others: %s", self._producing.name, partition, error)

    async def _settle_all(self, records: list[Message]) -> None:
        queues: dict[object, list[Message]] = {}
        for record in records:
            key = record.key() or record.offset()  # without a key nothing says that two belong together
            queues.setdefault((record.partition(), key), []).append(record)
        async with asyncio.TaskGroup() as group:
            for queue in queues.values():
                group.create_task(self._settle_each(queue))

    async def _settle_each(self, records: list[Message]) -> None:
        for record in records:
            await self._bring(record)

    async def _bring(self, record: Message) -> None:
        """Bring one in, or put it aside. While nobody can judge it, try again: those behind it wait."""
        tries = 0
        while True:
            try:
                refusal = await settle(record.value(), self._admit, self._patience)
                if refusal is not None:
                    await self._put_aside(record, refusal)
            except Exception as error:  # noqa: BLE001 - nobody has judged it, so it is not lost
                tries += 1
                pause = pause_after(tries)
                name = self._producing.name
                log.warning("transport %s: an answer was not judged: %s; again in %.1f s", name, error, pause)
                await asyncio.sleep(pause)
            else:
                return

    async def _put_aside(self, record: Message, refusal: Refusal) -> None:
        came: Any = record.headers() or ()  # pairs, although the type allows for a dict
        theirs = [(name, value) for name, value in came if not name.startswith(OWN)]

        async def publish(body: bytes, ours: dict[str, str]) -> None:
            headers = [*theirs, *ours.items()]
            await self._producing.publish(self._dead_letters, body or None, record.key(), headers)

        where = {"topic": self._responses, "partition": str(record.partition()), "offset": str(record.offset())}
        await put_aside(publish, record.value() or b"", refusal, **where)
        log.warning("transport %s: an answer went to %s: %s", self._producing.name, self._dead_letters, refusal.reason)
