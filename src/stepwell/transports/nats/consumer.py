"""JetStream's completions: several loops pull them from a durable consumer, one by one, and acknowledge them."""

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
from stepwell.transports.broker.settle import Refusal, Retries, pause_after, publish_dead_letter, see_through, settle
from stepwell.transports.nats.publisher import FAILURES, JetStream
from stepwell.transports.webhook.headers import is_header

log = logging.getLogger("stepwell")

GRACE: Final = 1.0  # seconds that JetStream has, after the time of a request, to report its end
NOTHING_PENDING: Final = ("404", "408")
CONFLICT: Final = "409"  # too many wait, a server goes down, or the leader changes


class Receiver:
    """Several loops, each with one completion at a time. Workers with the same durable name share the completions."""

    def __init__(
        self, stream: JetStream, admit: Admit, retries: Retries, *, responses: str, durable: str, dead_letters: str,
        ack_wait: float, wait: float,
    ) -> None:  # fmt: skip
        self._stream = stream
        self._admit = admit
        self._retries = retries
        self._responses = responses
        self._durable = durable
        self._dead_letters = dead_letters
        self._ack_wait = ack_wait
        self._wait = wait
        self._held: list[Msg] = []  # held when receiving was cancelled

    async def run(self, loops: int) -> None:
        """Bring completions in until cancelled."""
        stream = self._stream
        config = ConsumerConfig(ack_wait=self._ack_wait, max_ack_pending=10_000)
        made = await stream.context.pull_subscribe(self._responses, self._durable, stream.stream, config)
        await made.unsubscribe()  # a message it fetches could be taken for one of the server: see _pull
        subscriptions = [await stream.connection.subscribe(stream.connection.new_inbox()) for _ in range(loops)]
        try:
            _check_cancelled()
            async with asyncio.TaskGroup() as group:
                for subscription in subscriptions:
                    group.create_task(self._settle_next(subscription))
        finally:
            await asyncio.shield(self._leave(subscriptions))

    async def _leave(self, subscriptions: list[Subscription]) -> None:
        for subscription in subscriptions:
            with suppress(*FAILURES):
                await subscription.unsubscribe()
        for message in self._held:  # after all loops have ended: an ending one would get it again
            await self._give_back(message, 0.0)
        await self._stream.flush()

    async def _settle_next(self, subscription: Subscription) -> None:
        while True:
            message = await self._pull(subscription)
            if message is None:
                continue
            try:
                _check_cancelled()
                refusal = await settle(message.data, self._admit, self._retries)
            except asyncio.CancelledError:
                self._held.append(message)
                raise
            except Exception as error:  # noqa: BLE001 - it was not judged, so it must not be lost
                await self._put_off(message, error)
            else:
                await see_through(self._conclude(message, refusal))

    async def _pull(self, subscription: Subscription) -> Msg | None:
        """The next completion, if one comes in time.

        A status of the server has no reply subject. nats-py reports it by a header "Status", which a completion may
        have as well.
        """
        if not subscription.pending_msgs:
            request = msgspec.json.encode({"batch": 1, "expires": int(self._wait * 1_000_000_000)})
            next_message = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream.stream}.{self._durable}"
            await self._stream.connection.publish(next_message, request, subscription.subject)
        try:
            message = await subscription.next_msg(timeout=self._wait + GRACE)
        except TimeoutError:
            _check_cancelled()
            return None
        if message.reply:
            return message
        await self._on_status(message.headers or {})
        return None

    async def _on_status(self, headers: Mapping[str, str]) -> None:
        """Pause if the server cannot serve requests now; a missing consumer is made again by the caller."""
        status, what = headers.get("Status", ""), headers.get("Description", "")
        if status == CONFLICT and "deleted" not in what.lower():
            log.info("transport %s: %s: %s", self._stream.name, self._durable, what)
            await asyncio.sleep(GRACE)
        elif status not in NOTHING_PENDING:
            raise SendFailed(f"{self._durable}: {status} {what}")

    async def _conclude(self, message: Msg, refusal: Refusal | None) -> None:
        """Acknowledge a message that was admitted or sent to the dead letters."""
        try:
            if refusal is not None:
                await self._dead_letter(message, refusal)
        except (SendFailed, Undeliverable) as error:
            await self._put_off(message, error)
        else:
            with suppress(*FAILURES):  # it comes again, and is a duplicate
                await message.ack()

    async def _put_off(self, message: Msg, error: Exception) -> None:
        """Let it come again, later each time."""
        pause = pause_after(message.metadata.num_delivered)
        log.warning("transport %s: completion not judged: %s; again in %.1f s", self._stream.name, error, pause)
        await self._give_back(message, pause)

    async def _give_back(self, message: Msg, pause: float) -> None:
        with suppress(*FAILURES):
            await message.nak(delay=pause)

    async def _dead_letter(self, message: Msg, refusal: Refusal) -> None:
        sequence = str(message.metadata.sequence.stream)
        theirs = {
            name: value for name, value in (message.headers or {}).items()
            if is_header(name) and not name.lower().startswith("nats-")
        }  # fmt: skip
        ours = {"Nats-Msg-Id": f"dead:{self._stream.stream}:{sequence}"}

        async def publish(body: bytes, reason: dict[str, str], keeps_theirs: bool) -> None:
            own = {**(theirs if keeps_theirs else {}), **ours, **reason}
            await self._stream.publish(self._dead_letters, body, own)

        where = {"subject": message.subject, "stream": self._stream.stream, "sequence": sequence}
        await publish_dead_letter(publish, message.data, refusal, **where)
        log.warning("transport %s: completion sent to %s: %s", self._stream.name, self._dead_letters, refusal.reason)


def _check_cancelled() -> None:
    """On Python 3.11 `wait_for`, by which nats-py waits, may swallow a cancellation that comes with its result."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
