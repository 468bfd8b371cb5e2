"""JetStream's way back: several loops pull answers from a durable consumer, one by one, and acknowledge them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.api import ConsumerConfig

from stepwell.errors import SendFailed, Undeliverable
from stepwell.transports.base import Admit
from stepwell.transports.headers import is_header
from stepwell.transports.jetstream import FAILURES, JetStream
from stepwell.transports.settling import Patience, Refusal, pause_after, put_aside, see_through, settle

log = logging.getLogger("stepwell")

GRACE: Final = 1.0  # seconds that JetStream has, after the time of a request, to say that it is over
NOTHING_CAME: Final = ("404", "408")
CONFLICT: Final = "409"  # too many wait, a server goes down, another one leads


class Receiver:
    """Several loops, each with one answer in hand at a time. Workers with the same durable name share the answers."""

    def __init__(
        self, stream: JetStream, admit: Admit, patience: Patience, *, responses: str, durable: str, dead_letters: str,
        ack_wait: float, wait: float,
    ) -> None:  # fmt: skip
        self._stream = stream
        self._admit = admit
        self._patience = patience
        self._responses = responses
        self._durable = durable
        self._dead_letters = dead_letters
        self._ack_wait = ack_wait
        self._wait = wait
        self._held: list[Msg] = []  # in hand when receiving was cancelled

    async def run(self, loops: int) -> None:
        """Bring answers in until cancelled."""
        stream = self._stream
        config = ConsumerConfig(ack_wait=self._ack_wait, max_ack_pending=10_000)
        made = await stream.context.pull_subscribe(self._responses, self._durable, stream.stream, config)
        await made.unsubscribe()  # what it fetches, it may take for a message of the server: see _pull
        inboxes = [await stream.connection.subscribe(stream.connection.new_inbox()) for _ in range(loops)]
        try:
            _check_cancelled()
            async with asyncio.TaskGroup() as group:
                for inbox in inboxes:
                    group.create_task(self._bring(inbox))
        finally:
            await asyncio.shield(self._leave(inboxes))

    async def _leave(self, inboxes: list[Subscription]) -> None:
        for inbox in inboxes:
            with suppress(*FAILURES):
                await inbox.unsubscribe()
        for message in self._held:  # after all have left: it would come straight back to one that leaves
            await self._give_back(message, 0.0)
        await self._stream.flush()

    async def _bring(self, inbox: Subscription) -> None:
        while True:
            message = await self._pull(inbox)
            if message is None:
                continue
            try:
                _check_cancelled()
                refusal = await settle(message.data, self._admit, self._patience)
            except asyncio.CancelledError:
                self._held.append(message)
                raise
            except Exception as error:  # noqa: BLE001 - nobody has judged it, so it is not lost
                await self._put_off(message, error)
            else:
                await see_through(self._conclude(message, refusal))

    async def _pull(self, inbox: Subscription) -> Msg | None:
        """The next answer, if one comes in time.

        What the server says about a request has no place to reply to. nats-py tells it by a header "Status", which
        an answer may have as well.
        """
        if not inbox.pending_msgs:
            request = msgspec.json.encode({"batch": 1, "expires": int(self._wait * 1_000_000_000)})
            consumer = f"{self._stream.stream}.{self._durable}"
            await self._stream.connection.publish(f"$JS.API.CONSUMER.MSG.NEXT.{consumer}", request, inbox.subject)
        try:
            message = await inbox.next_msg(timeout=self._wait + GRACE)
        except TimeoutError:
            _check_cancelled()
            return None
        if message.reply:
            return message
        await self._heed(message.headers or {})
        return None

    async def _heed(self, said: Mapping[str, str]) -> None:
        """Ask no more at once if the server can not now; a consumer that is gone is made again, by who calls."""
        status, what = said.get("Status", ""), said.get("Description", "")
        if status == CONFLICT and "deleted" not in what.lower():
            log.info("transport %s: %s: %s", self._stream.name, self._durable, what)
            await asyncio.sleep(GRACE)
        elif status not in NOTHING_CAME:
            raise SendFailed(f"{self._durable}: {status} {what}")

    async def _conclude(self, message: Msg, refusal: Refusal | None) -> None:
        """Acknowledge what was admitted or put aside."""
        try:
            if refusal is not None:
                await self._put_aside(message, refusal)
        except (SendFailed, Undeliverable) as error:
            await self._put_off(message, error)
        else:
            with suppress(*FAILURES):  # it comes again, and is a duplicate
                await message.ack()

    async def _put_off(self, message: Msg, error: Exception) -> None:
        """It comes again, later each time."""
        pause = pause_after(message.metadata.num_delivered)
        log.warning("transport %s: an answer was not judged: %s; again in %.1f s", self._stream.name, error, pause)
        await self._give_back(message, pause)

    async def _give_back(self, message: Msg, pause: float) -> None:
        with suppress(*FAILURES):
            await message.nak(delay=pause)

    async def _put_aside(self, message: Msg, refusal: Refusal) -> None:
        sequence = str(message.metadata.sequence.stream)
        theirs = {
            name: value for name, value in (message.headers or {}).items()
            if is_header(name) and not name.lower().startswith("nats-")
        }  # fmt: skip
        ours = {"Nats-Msg-Id": f"dead:{self._stream.stream}:{sequence}"}

        async def publish(body: bytes, said: dict[str, str], keeps_theirs: bool) -> None:
            own = {**(theirs if keeps_theirs else {}), **ours, **said}
            await self._stream.publish(self._dead_letters, body, own)

        where = {"subject": message.subject, "stream": self._stream.stream, "sequence": sequence}
        await put_aside(publish, message.data, refusal, **where)
        log.warning("transport %s: an answer went to %s: %s", self._stream.name, self._dead_letters, refusal.reason)


def _check_cancelled() -> None:
    """On Python 3.11 `wait_for`, by which nats-py waits, may swallow a cancellation that comes with its result."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
