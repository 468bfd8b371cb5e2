"""Moto's SQS server, over HTTP, and the other end of a transport over it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import count
from types import TracebackType
from typing import Any, Final, Self

from moto.server import ThreadedMotoServer

from stepwell.transports import Sqs
from stepwell.transports.sqs.client import load_session
from tests.features.transports.brokers.sides import BrokerSide, Letter
from tests.features.transports.brokers.worker import read_options

_numbers = count()
CREDENTIALS: Final = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
REGION: Final = "eu-west-1"


class SqsServer:
    """A server in a thread. Its queues are in the process, and outlive its restarts."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
        self._server.start()
        self.port = self._server.get_host_and_port()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", port=self.port, verbose=False)
        self._server.start()

    def stop(self) -> None:
        self._server.stop()


class SqsSide(BrokerSide):
    """Queues of its own for each test."""

    kind = "Sqs"

    def __init__(self, server: SqsServer) -> None:
        self.server = server
        self.name = f"t{next(_numbers)}"
        self._stack = AsyncExitStack()
        self._found: dict[str, list[Letter]] = {}

    async def __aenter__(self) -> Self:
        self._client = await self._stack.enter_async_context(
            load_session().create_client("sqs", region_name=REGION, endpoint_url=self.server.url, **CREDENTIALS)
        )
        for queue in ("ask", "say", "say-dead"):
            await self._client.create_queue(QueueName=f"{self.name}-{queue}")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def url(self, queue: str) -> str:
        return f"{self.server.url}/123456789012/{self.name}-{queue}"

    @property
    def options(self) -> dict[str, Any]:
        return {
            "requests": self.url("ask"), "responses": self.url("say"), "region": REGION, "endpoint": self.server.url,
            "client": CREDENTIALS, "every": 0.005, "visibility": 1.0, "wait": 1.0, "timeout": 2.0, "concurrency": 2,
            "max_in_flight": 20,
        }  # fmt: skip

    def make_transport(self, **changes: Any) -> Sqs:
        return Sqs("broker", **read_options({**self.options, **changes}))

    async def letters(self, number: int) -> Sequence[Letter]:
        return await self._read("ask", number)

    async def dead_letters(self, number: int) -> Sequence[Letter]:
        """Each once: a dead letter may be written again, if its message is received again before it is deleted."""
        while True:
            letters = {letter.body: letter for letter in await self._read("say-dead", number)}
            if len(letters) >= number:
                return list(letters.values())

    def carries(self, body: bytes) -> bool:
        """Text, and not nothing."""
        return b"\xff" not in body

    async def put(self, body: bytes, **attributes: str) -> None:
        await self._client.send_message(
            QueueUrl=self.url("say"), MessageBody=body.decode(),
            MessageAttributes={k: {"DataType": "String", "StringValue": v} for k, v in attributes.items()},
        )  # fmt: skip

    async def refuse_dead_letters(self) -> None:
        await self._client.delete_queue(QueueUrl=self.url("say-dead"))

    async def take_dead_letters(self) -> None:
        await self._client.create_queue(QueueName=f"{self.name}-say-dead")

    async def fail(self) -> None:
        await asyncio.to_thread(self.server.stop)

    async def recover(self) -> None:
        self.server.start()

    async def _read(self, queue: str, number: int) -> Sequence[Letter]:
        found = self._found.setdefault(queue, [])
        while True:
            answer = await self._client.receive_message(
                QueueUrl=self.url(queue), MaxNumberOfMessages=10, WaitTimeSeconds=0 if len(found) >= number else 1,
                MessageAttributeNames=["All"],
            )  # fmt: skip
            messages = answer.get("Messages", [])
            for message in messages:
                attributes = message.get("MessageAttributes", {})
                headers = {name: attribute["StringValue"] for name, attribute in attributes.items()}
                found.append(Letter(message["Body"].encode(), headers))
            if messages:
                handles = enumerate(message["ReceiptHandle"] for message in messages)
                entries = [{"Id": str(number), "ReceiptHandle": handle} for number, handle in handles]
                await self._client.delete_message_batch(QueueUrl=self.url(queue), Entries=entries)
            if len(found) >= number and not messages:
                return list(found)
