"""Kafka's completions: records of a member of a consumer group, which are settled in the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Message

from stepwell.transports.base import Admit
from stepwell.transports.broker.settle import Refusal, Retries, pause_after, publish_dead_letter, settle
from stepwell.transports.kafka.group_member import ALL, GroupMember
from stepwell.transports.kafka.offsets import Offsets
from stepwell.transports.kafka.producer import Producing

log = logging.getLogger("stepwell")

SLOW: Final = 0.5  # seconds after which others no longer wait for a completion
OWN: Final = ("stepwell-reason", "stepwell-origin", "stepwell-truncated")


class CompletionConsumer:
    """Settles what one member takes: records with the same key one after the other, others at the same time.

    An offset is stored when all before it in its partition are settled; stored offsets are committed every second,
    when partitions go to others, and at the end. A partition with a slow completion is paused; others continue.
    """

    def __init__(
        self, producing: Producing, admit: Admit, retries: Retries, *, responses: str, dead_letters: str,
        config: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self._producing = producing
        self._admit = admit
        self._retries = retries
        self._responses = responses
        self._dead_letters = dead_letters
        self._member = GroupMember(producing.name, responses, config)
        self._offsets = Offsets()
        self._settling: dict[asyncio.Task[None], int] = {}  # with their partition

    async def run(self, batch: int) -> None:
        """Bring completions in until cancelled."""
        await self._member.join()
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    await self._take_some(group, batch)
        finally:
            await asyncio.shield(self._member.leave(self._offsets.advance()))

    async def _take_some(self, group: asyncio.TaskGroup, batch: int) -> None:
        """Take new records, and wait until they are settled, but not for long, so that Kafka keeps hearing from this
        member.
        """
        room = batch - len(self._offsets)
        settled, waiting = self._offsets.advance(), self._offsets.waiting if room > 0 else ALL
        records = await self._member.take(settled, waiting, max(room, 1))
        self._drop_revoked()
        begun = [self._begin(group, queue) for queue in _by_key(records)]
        if begun:
            await asyncio.wait(begun, timeout=SLOW)

    def _drop_revoked(self) -> None:
        """Drop unsettled records of revoked partitions: their new owner settles them once more."""
        gone, self._member.revoked = self._member.revoked, set()
        self._offsets.forget(gone)
        for task, partition in self._settling.items():
            if partition in gone:
                task.cancel()

    def _begin(self, group: asyncio.TaskGroup, records: list[Message]) -> asyncio.Task[None]:
        for record in records:
            self._offsets.take(*_place(record))
        task = group.create_task(self._settle_each(records))
        self._settling[task] = _place(records[0])[0]
        task.add_done_callback(self._settling.pop)
        return task

    async def _settle_each(self, records: list[Message]) -> None:
        for record in records:
            await self._settle_next(record)
            self._offsets.settle(*_place(record))

    async def _settle_next(self, record: Message) -> None:
        """Settle one, or send it to the dead letters. While it cannot be judged, try again: those behind it wait."""
        tries = 0
        while True:
            try:
                refusal = await settle(record.value(), self._admit, self._retries)
                if refusal is not None:
                    await self._dead_letter(record, refusal)
            except Exception as error:  # noqa: BLE001 - it was not judged, so it must not be lost
                tries += 1
                pause = pause_after(tries)
                name = self._producing.name
                log.warning("transport %s: completion not judged: %s; again in %.1f s", name, error, pause)
                await asyncio.sleep(pause)
            else:
                return

    async def _dead_letter(self, record: Message, refusal: Refusal) -> None:
        pairs: Any = record.headers() or ()  # pairs, although the type allows for a dict
        theirs = [(name, value) for name, value in pairs if not name.startswith(OWN)]

        async def publish(body: bytes, ours: dict[str, str], keeps_theirs: bool) -> None:
            headers = [*(theirs if keeps_theirs else ()), *ours.items()]
            await self._producing.publish(self._dead_letters, body or None, record.key(), headers)

        where = {"topic": self._responses, "partition": str(record.partition()), "offset": str(record.offset())}
        await publish_dead_letter(publish, record.value() or b"", refusal, **where)
        log.warning("transport %s: completion sent to %s: %s", self._producing.name, self._dead_letters, refusal.reason)


def _place(record: Message) -> tuple[int, int]:
    partition, offset = record.partition(), record.offset()
    assert partition is not None and offset is not None  # noqa: S101, PT018 - a received record has both
    return partition, offset


def _by_key(records: list[Message]) -> list[list[Message]]:
    """Records with the same key, in their order; records without a key are independent."""
    queues: dict[object, list[Message]] = {}
    for record in records:
        queues.setdefault((record.partition(), record.key() or record.offset()), []).append(record)
    return list(queues.values())
