"""JetStream over nats-py: one connection, questions published with an acknowledgement, answers pulled one by one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import ceil
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig
from nats.js.errors import APIError, NotFoundError

from stepwell.errors import SendFailed, Undeliverable, UnknownDestination
from stepwell.transports.base import Admit
from stepwell.transports.settling import Patience, Refusal, pause_after, put_aside, see_through, settle

log = logging.getLogger("stepwell")

MESSAGE_TOO_LARGE: Final = 10054  # the server's code for what is above a stream's max_msg_size
HEADERS_BEGIN: Final = len("NATS/1.0\r\n\r\n")
RECONNECT_WAIT: Final = 0.2  # seconds
_FAILURES = (NatsError, OSError, TimeoutError)


class JetStream:
    """One connection, which comes back by itself."""

    def __init__(self, name: str, servers: Sequence[str], timeout: float, options: Mapping[str, Any]) -> None:
        self.name = name
        self._servers = list(servers)
        self._timeout = timeout
        self._options = options
        self._connection = Client()
        self._connected = asyncio.Event()
        self._sending: set[asyncio.Task[Any]] = set()
        self.context: JetStreamContext
        self.stream = ""

    async def open(self, requests: str, responses: str, dead_letters: str) -> None:
        """Connect, and see that there is a stream for each subject."""
        options = {
            "max_reconnect_attempts": -1, "reconnect_time_wait": RECONNECT_WAIT, "name": f"stepwell {self.name}",
            "error_cb": self._note, **self._options, "disconnected_cb": self._lose, "reconnected_cb": self._regain,
        }  # fmt: skip
        try:
            async with asyncio.timeout(self._timeout):
                await self._connection.connect(self._servers, **options)
                self._connected.set()
                self.context = self._connection.jetstream(timeout=self._timeout)
                await self._find(requests)
                self.stream = await self._find(responses)
                await self._find(dead_letters)
        except BaseException as error:
            await self.close()
            if isinstance(error, _FAILURES):
                raise SendFailed(f"{self.name}: NATS does not answer: {_said(error)}") from error
            raise

    async def close(self) -> None:
        """Wait for what is being published, and hang up."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=self._timeout)
        with suppress(*_FAILURES):
            await self._connection.close()

    async def publish(self, subject: str, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
        """Publish one message, and wait until it is stored; returns where."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in one
        self._sending.add(task)
        try:
            async with asyncio.timeout(self._timeout):
                await self._connected.wait()  # nats-py would keep the message, and send it long after we gave up
                self._check_size(body, headers)
                stored = await self.context.publish(subject, body, timeout=self._timeout, headers=dict(headers))
        except APIError as error:
            if error.err_code == MESSAGE_TOO_LARGE:
                raise Undeliverable(f"{len(body):,} bytes are more than the stream of {subject} takes") from error
            raise SendFailed(f"{subject}: {_said(error)}") from error
        except _FAILURES as error:
            raise SendFailed(f"{subject}: {_said(error)}") from error
        finally:
            self._sending.discard(task)
        return {"stream": stored.stream, "sequence": stored.seq}

    def _check_size(self, body: bytes, headers: Mapping[str, str]) -> None:
        """With headers and all: nats-py looks at the body alone, and the server hangs up on what is larger."""
        size = len(body) + HEADERS_BEGIN + sum(len(f"{name}: {value}\r\n".encode()) for name, value in headers.items())
        if size > self._connection.max_payload:
            raise Undeliverable(f"{size:,} bytes are more than NATS takes ({self._connection.max_payload:,})")

    async def flush(self) -> None:
        """Let acknowledgements out."""
        with suppress(*_FAILURES):
            await self._connection.flush(timeout=ceil(self._timeout))

    async def _find(self, subject: str) -> str:
        try:
            return await self.context.find_stream_name_by_subject(subject)
        except NotFoundError:
            hint = f"make one: nats stream add --subjects {subject}"
            raise UnknownDestination(self.name, "stream with subject", subject, hint) from None

    async def _lose(self) -> None:
        self._connected.clear()

    async def _regain(self) -> None:
        self._connected.set()

    async def _note(self, error: Exception) -> None:
        log.info("transport %s: %s", self.name, _said(error))


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
        context = self._stream.context
        config = ConsumerConfig(ack_wait=self._ack_wait, max_ack_pending=10_000)
        first = await context.pull_subscribe(self._responses, self._durable, self._stream.stream, config)
        others = [await context.pull_subscribe_bind(self._durable, self._stream.stream) for _ in range(loops - 1)]
        try:
            _check_cancelled()
            async with asyncio.TaskGroup() as group:
                for pulling in (first, *others):
                    group.create_task(self._bring(pulling))
        finally:
            await asyncio.shield(self._leave(first, *others))

    async def _leave(self, *subscriptions: JetStreamContext.PullSubscription) -> None:
        for pulling in subscriptions:
            with suppress(*_FAILURES):
                await pulling.unsubscribe()
        for message in self._held:  # after all have left: it would come straight back to one that leaves
            await self._give_back(message, 0.0)
        await self._stream.flush()

    async def _bring(self, pulling: JetStreamContext.PullSubscription) -> None:
        while True:
            try:
                [message] = await pulling.fetch(1, timeout=self._wait)
            except TimeoutError:
                _check_cancelled()
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

    async def _conclude(self, message: Msg, refusal: Refusal | None) -> None:
        """Acknowledge what was admitted or put aside."""
        try:
            if refusal is not None:
                await self._put_aside(message, refusal)
        except SendFailed as error:
            await self._put_off(message, error)
        else:
            with suppress(*_FAILURES):  # it comes again, and is a duplicate
                await message.ack()

    async def _put_off(self, message: Msg, error: Exception) -> None:
        """It comes again, later each time."""
        pause = pause_after(message.metadata.num_delivered)
        log.warning("transport %s: an answer was not judged: %s; again in %.1f s", self._stream.name, error, pause)
        await self._give_back(message, pause)

    async def _give_back(self, message: Msg, pause: float) -> None:
        with suppress(*_FAILURES):
            await message.nak(delay=pause)

    async def _put_aside(self, message: Msg, refusal: Refusal) -> None:
        sequence = str(message.metadata.sequence.stream)
        own = {name: value for name, value in (message.headers or {}).items() if not name.lower().startswith("nats-")}
        own["Nats-Msg-Id"] = f"dead:{self._stream.stream}:{sequence}"

        async def publish(body: bytes, ours: dict[str, str]) -> None:
            await self._stream.publish(self._dead_letters, body, {**own, **ours})

        where = {"subject": message.subject, "stream": self._stream.stream, "sequence": sequence}
        await put_aside(publish, message.data, refusal, **where)
        log.warning("transport %s: an answer went to %s: %s", self._stream.name, self._dead_letters, refusal.reason)


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _check_cancelled() -> None:
    """On Python 3.11 `wait_for`, by which nats-py waits, may swallow a cancellation that comes with its result."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
