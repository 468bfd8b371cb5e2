"""SQS over aiobotocore: messages sent, and completions polled, settled and deleted, several at a time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from functools import cache
from math import ceil
from typing import Any, Final

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import BotoCoreError, ClientError

from stepwell.errors import SendFailed, Undeliverable, UnknownDestination
from stepwell.transports.base import Admit
from stepwell.transports.broker.settle import Refusal, Retries, pause_after, publish_dead_letter, see_through, settle

log = logging.getLogger("stepwell")

FAILURES: Final = (BotoCoreError, ClientError, OSError, TimeoutError)
_GONE: Final = ("QueueDoesNotExist", "NonExistentQueue", "InvalidAddress")
_NO_ACCESS: Final = ("AccessDenied", "AccessDeniedException")  # the queue may exist while we may not look it up
_UNFIT: Final = ("InvalidMessageContents", "InvalidParameterValue")
MOST_ATTRIBUTES: Final = 10
MOST_BYTES: Final = 1024 * 1024  # of a message with its attributes, in any queue


@cache
def load_session() -> Any:
    """A session that has loaded the service description: some megabytes of JSON, too much for an event loop."""
    session = get_session()
    loader = session.get_component("data_loader")
    for kind in ("service-2", "endpoint-rule-set-1"):
        loader.load_service_model("sqs", kind)
    for name in ("endpoints", "partitions", "_retry"):
        loader.load_data(name)
    return session


class Queues:
    """One client of SQS."""

    def __init__(self, name: str, client: Mapping[str, Any], *, timeout: float, wait: int, connections: int) -> None:
        self.name = name
        self.wait = wait
        self._timeout = timeout
        self._options = {
            "config": AioConfig(
                connect_timeout=timeout, read_timeout=wait + timeout, max_pool_connections=connections,
                retries={"total_max_attempts": 1},  # the caller tries again, and knows how long
            ),
            **client,
        }  # fmt: skip
        self._stack = AsyncExitStack()
        self._sending: set[asyncio.Task[Any]] = set()
        self.client: Any = None

    async def open(self, *queues: str) -> None:
        """Connect, and check that the queues exist."""
        try:
            session = await asyncio.to_thread(load_session)
            self.client = await self._stack.enter_async_context(session.create_client("sqs", **self._options))
            async with asyncio.timeout(self._timeout):
                for queue in queues:
                    await self._find(queue)
        except BaseException as error:
            await self.close()
            if isinstance(error, FAILURES):
                raise SendFailed(f"{self.name}: SQS does not answer: {_error_text(error)}") from error
            raise

    async def close(self) -> None:
        """Wait for the messages that are being sent, and disconnect."""
        if self._sending:
            await asyncio.wait(self._sending, timeout=self._timeout)
        await self._stack.aclose()

    async def send(self, queue: str, body: str, headers: Mapping[str, str]) -> str:
        """Send one message, and wait until it is stored; returns its id."""
        attributes = {name: {"DataType": "String", "StringValue": value} for name, value in headers.items()}
        size = len(body.encode()) + sum(len(f"{name}String{value}".encode()) for name, value in headers.items())
        if size > MOST_BYTES:
            raise Undeliverable(f"{size:,} bytes are more than SQS takes ({MOST_BYTES:,})")
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in one
        self._sending.add(task)
        try:
            async with asyncio.timeout(self._timeout):
                sent = await self.client.send_message(QueueUrl=queue, MessageBody=body, MessageAttributes=attributes)
        except ClientError as error:
            if _code(error) in _UNFIT:
                raise Undeliverable(f"SQS does not take these {size:,} bytes: {_error_text(error)}") from error
            raise SendFailed(f"{queue}: {_error_text(error)}") from error
        except (*FAILURES, RuntimeError) as error:  # RuntimeError: the session was closed meanwhile
            raise SendFailed(f"{queue}: {_error_text(error)}") from error
        finally:
            self._sending.discard(task)
        return str(sent["MessageId"])

    async def _find(self, queue: str) -> None:
        try:
            await self.client.get_queue_attributes(QueueUrl=queue, AttributeNames=["QueueArn"])
        except ClientError as error:
            if _code(error) in _GONE:
                name = queue.rpartition("/")[2]
                hint = f"make it: aws sqs create-queue --queue-name {name}"
                raise UnknownDestination(self.name, "queue", queue, hint) from error
            if _code(error) not in _NO_ACCESS:
                raise


class Poller:
    """Several loops, each with one batch at a time."""

    def __init__(
        self, queues: Queues, admit: Admit, retries: Retries, *, responses: str, dead_letters: str, visibility: int,
        batch: int,
    ) -> None:  # fmt: skip
        self._queues = queues
        self._admit = admit
        self._retries = retries
        self._responses = responses
        self._dead_letters = dead_letters
        self._visibility = visibility
        self._batch = batch

    async def run(self, loops: int) -> None:
        """Bring completions in until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(loops):
                group.create_task(self._poll())

    async def _poll(self) -> None:
        failures = 0
        while True:
            try:
                messages = await self._take()
            except FAILURES as error:
                failures += 1
                pause = pause_after(failures)
                problem = _error_text(error)
                log.warning("transport %s: cannot receive: %s; again in %.1f s", self._queues.name, problem, pause)
                await asyncio.sleep(pause)
                continue
            failures = 0
            async with asyncio.TaskGroup() as group:
                for message in messages:
                    group.create_task(self._keep(message))

    async def _take(self) -> list[dict[str, Any]]:
        found = await self._queues.client.receive_message(
            QueueUrl=self._responses, MaxNumberOfMessages=self._batch, WaitTimeSeconds=self._queues.wait,
            VisibilityTimeout=self._visibility, MessageAttributeNames=["All"],
            AttributeNames=["ApproximateReceiveCount"],
        )  # fmt: skip
        messages: list[dict[str, Any]] = found.get("Messages", [])
        return messages

    async def _keep(self, message: dict[str, Any]) -> None:
        """Settle one, and keep it invisible to others meanwhile; if cancelled before it is judged, release it."""
        judging = asyncio.create_task(settle(message.get("Body", "").encode(), self._admit, self._retries))
        try:
            while not (await asyncio.wait([judging], timeout=self._visibility / 2))[0]:
                await self._hide(message, self._visibility)
        except asyncio.CancelledError:
            judging.cancel()
            await see_through(self._hide(message, 0))
            raise
        await see_through(self._conclude(message, judging))

    async def _conclude(self, message: dict[str, Any], judged: asyncio.Task[Refusal | None]) -> None:
        """Delete it if it was admitted or sent to the dead letters; otherwise it comes again, later each time."""
        try:
            refusal = judged.result()
            if refusal is not None:
                await self._dead_letter(message, refusal)
        except Exception as error:  # noqa: BLE001 - it was not judged, so it must not be lost
            pause = ceil(pause_after(int(message["Attributes"]["ApproximateReceiveCount"])))
            log.warning("transport %s: completion not judged: %s; again in %s s", self._queues.name, error, pause)
            await self._hide(message, pause)
            return
        with suppress(*FAILURES):  # it comes again, and is a duplicate
            await self._queues.client.delete_message(
                QueueUrl=self._responses, ReceiptHandle=message["ReceiptHandle"]
            )  # fmt: skip

    async def _hide(self, message: dict[str, Any], seconds: int) -> None:
        with suppress(*FAILURES):  # then it comes again when its visibility timeout has ended
            await self._queues.client.change_message_visibility(
                QueueUrl=self._responses, ReceiptHandle=message["ReceiptHandle"], VisibilityTimeout=seconds
            )

    async def _dead_letter(self, message: dict[str, Any], refusal: Refusal) -> None:
        theirs = {
            name: attribute["StringValue"] for name, attribute in message.get("MessageAttributes", {}).items()
            if "StringValue" in attribute
        }  # fmt: skip

        async def publish(body: bytes, ours: dict[str, str], keeps_theirs: bool) -> None:
            others = [(name, value) for name, value in theirs.items() if keeps_theirs and name not in ours]
            headers = {**dict(others[: MOST_ATTRIBUTES - len(ours)]), **ours}
            await self._queues.send(self._dead_letters, body.decode("utf-8", "ignore"), headers)

        where = {"queue": self._responses, "message": message["MessageId"]}
        await publish_dead_letter(publish, message["Body"].encode(), refusal, **where)
        log.warning("transport %s: completion sent to %s: %s", self._queues.name, self._dead_letters, refusal.reason)


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", "")).rpartition(".")[2]


def _error_text(error: BaseException) -> str:
    return str(error) or type(error).__name__
