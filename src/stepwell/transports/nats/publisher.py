"""JetStream over nats-py: a connection that reconnects; interactions published with an acknowledgement."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import ceil
from typing import Any, Final

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import APIError, NotFoundError

from stepwell.errors import SendFailed, Undeliverable, UnknownDestination

log = logging.getLogger("stepwell")

MESSAGE_TOO_LARGE: Final = 10054  # the server's code for a message above a stream's max_msg_size
HEADERS_BEGIN: Final = len("NATS/1.0\r\n\r\n")
RECONNECT_WAIT: Final = 0.2  # seconds
FAILURES: Final = (NatsError, OSError, TimeoutError)


class JetStream:
    """One connection, which reconnects by itself."""

    def __init__(self, name: str, servers: Sequence[str], timeout: float, options: Mapping[str, Any]) -> None:
        self.name = name
        self._servers = list(servers)
        self._timeout = timeout
        self._options = options
        self.connection = Client()
        self._connected = asyncio.Event()
        self._sending: set[asyncio.Task[Any]] = set()
        self.context: JetStreamContext
        self.stream = ""

    async def open(self, requests: str, responses: str, dead_letters: str, durable: str) -> None:
        """Connect, and check that there is a stream for each subject, and no consumer that would lose completions."""
        options = {
            "max_reconnect_attempts": -1, "reconnect_time_wait": RECONNECT_WAIT, "name": f"stepwell {self.name}",
            "error_cb": self._note, **self._options, "disconnected_cb": self._lose, "reconnected_cb": self._regain,
        }  # fmt: skip
        try:
            async with asyncio.timeout(self._timeout):
                await self.connection.connect(self._servers, **options)
                self._connected.set()
                self.context = self.connection.jetstream(timeout=self._timeout)
                await self._find(requests)
                self.stream = await self._find(responses)
                await self._find(dead_letters)
                await self._check_consumer(responses, durable)
        except BaseException as error:
            await self.close()
            if isinstance(error, FAILURES):
                raise SendFailed(f"{self.name}: NATS does not answer: {error_text(error)}") from error
            raise

    async def close(self) -> None:
        """Wait for the messages that are being published, and disconnect."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=self._timeout)
        with suppress(*FAILURES):
            await self.connection.close()

    async def publish(self, subject: str, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
        """Publish one message, and wait until it is stored; returns where."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in one
        self._sending.add(task)
        try:
            async with asyncio.timeout(self._timeout):
                await self._connected.wait()  # nats-py would keep the message, and send it long after our timeout
                self._check_size(body, headers)
                stored = await self.context.publish(subject, body, timeout=self._timeout, headers=dict(headers))
        except APIError as error:
            if error.err_code == MESSAGE_TOO_LARGE:
                raise Undeliverable(f"{len(body):,} bytes are more than the stream of {subject} takes") from error
            raise SendFailed(f"{subject}: {error_text(error)}") from error
        except FAILURES as error:
            raise SendFailed(f"{subject}: {error_text(error)}") from error
        finally:
            self._sending.discard(task)
        return {"stream": stored.stream, "sequence": stored.seq}

    def _check_size(self, body: bytes, headers: Mapping[str, str]) -> None:
        """Checks the size with headers: nats-py checks only the body, and the server disconnects if the message is
        larger.
        """
        size = len(body) + HEADERS_BEGIN + sum(len(f"{name}: {value}\r\n".encode()) for name, value in headers.items())
        if size > self.connection.max_payload:
            raise Undeliverable(f"{size:,} bytes are more than NATS takes ({self.connection.max_payload:,})")

    async def flush(self) -> None:
        """Send pending acknowledgements."""
        with suppress(*FAILURES):
            await self.connection.flush(timeout=ceil(self._timeout))

    async def _find(self, subject: str) -> str:
        try:
            return await self.context.find_stream_name_by_subject(subject)
        except NotFoundError:
            hint = f"make one: nats stream add --subjects {subject}"
            raise UnknownDestination(self.name, "stream with subject", subject, hint) from None

    async def _check_consumer(self, responses: str, durable: str) -> None:
        """An existing one, of another transport or made by an operator, has to redeliver all completions until they
        are judged.
        """
        try:
            found = (await self.context.consumer_info(self.stream, durable)).config
        except NotFoundError:
            return  # it is made when completions are pulled
        problem = _problem_with(found, responses)
        if problem is not None:
            hint = f"the one of that name {problem}: give this transport a durable= of its own"
            raise UnknownDestination(self.name, f"consumer of {responses!r} called", durable, hint)

    async def _lose(self) -> None:
        self._connected.clear()

    async def _regain(self) -> None:
        self._connected.set()

    async def _note(self, error: Exception) -> None:
        log.info("transport %s: %s", self.name, error_text(error))


def error_text(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _problem_with(consumer: ConsumerConfig, responses: str) -> str | None:
    brought = consumer.filter_subjects or [consumer.filter_subject or ">"]
    if brought != [responses]:
        return f"brings {', '.join(brought)}"
    if consumer.deliver_subject:
        return "pushes"
    if consumer.ack_policy != AckPolicy.EXPLICIT:
        return "does not ask for an acknowledgement of each completion"
    if (consumer.max_deliver or -1) > 0:
        return f"gives completions up after {consumer.max_deliver} times"
    return None
