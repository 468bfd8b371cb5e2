"""NATS: each interaction is a message in a JetStream stream, each completion one that a durable consumer brings
back.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stepwell._core.interaction import Dispatch
from stepwell.errors import SendFailed
from stepwell.transports.base import Admit, Transport, outlasting
from stepwell.transports.broker.envelope import write_headers, write_interaction
from stepwell.transports.broker.options import Options, import_client, read_author_headers, read_number, read_time

if TYPE_CHECKING:
    from stepwell.transports.nats.publisher import JetStream

_SUBJECT: Final = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)*")
_DURABLE: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")


class Nats(Transport):
    """Asks over JetStream: `Nats("payments", servers="nats://…", requests="pay.ask", responses="pay.say")`.

    The streams have to exist; the durable consumer is made if it does not. A completion is acknowledged after it was
    admitted; a refused one goes to `dead_letters`, with the reason. Needs the extra "nats".
    """

    def __init__(
        self,
        name: str,
        *,
        servers: str | Sequence[str],
        requests: str,
        responses: str,
        durable: str = "stepwell",
        dead_letters: str | None = None,
        headers: Mapping[str, str] | None = None,
        tries: int = 30,
        every: timedelta = timedelta(milliseconds=100),
        ack_wait: timedelta = timedelta(seconds=30),
        wait: timedelta = timedelta(seconds=5),
        timeout: timedelta = timedelta(seconds=5),
        concurrency: int = 10,
        max_in_flight: int = 50,
        connect: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        options = Options("Nats", name)
        self._client = import_client("stepwell.transports.nats.publisher", "nats", "Nats")
        self._pulling = import_client("stepwell.transports.nats.consumer", "nats", "Nats")
        self._servers = options.read("servers", _read_servers, servers)
        self._requests = options.read("requests", _read_subject, requests)
        self._responses = options.read("responses", _read_subject, responses)
        self._dead_letters = options.read("dead_letters", _read_subject, dead_letters or f"{responses}.dead")
        if len({self._requests, self._responses, self._dead_letters}) < 3:  # noqa: PLR2004 - all are different
            raise options.error("dead_letters", "requests, responses and dead letters need a subject each")
        self._durable = options.read("durable", _read_durable, durable)
        self._headers = options.read("headers", lambda given: read_author_headers(given, "nats-"), headers)
        self._retries = options.read_retries(tries, every)
        self._ack_wait = options.read("ack_wait", read_time, ack_wait)
        if self._retries.whole >= self._ack_wait:
            raise options.error("ack_wait", f"expected more than tries x every, {self._retries.whole}; got {ack_wait}")
        self._wait = options.read("wait", read_time, wait)
        self._timeout = options.read("timeout", read_time, timeout)
        self.send_timeout = outlasting(self._timeout)
        self._concurrency = options.read("concurrency", read_number, concurrency)
        self.max_in_flight = options.read("max_in_flight", read_number, max_in_flight)
        self._connect = dict(connect or {})
        self._stream: JetStream | None = None

    async def open(self) -> None:
        if self._stream is None:
            stream = self._client.JetStream(self.name, self._servers, self._timeout.total_seconds(), self._connect)
            await stream.open(self._requests, self._responses, self._dead_letters, self._durable)
            self._stream = stream

    async def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()

    async def send(self, dispatch: Dispatch, /) -> Mapping[str, Any]:
        """A sending that the client repeats has the same message id; the next attempt has another."""
        headers = write_headers(dispatch, self._headers, subject=self._responses)
        headers["Nats-Msg-Id"] = f"{dispatch.interaction_id}:{dispatch.attempt}"
        stored = await self._opened().publish(self._requests, write_interaction(dispatch), headers)
        return {"subject": self._requests, "responseSubject": self._responses, **stored}

    async def receive(self, admit: Admit, /) -> None:
        receiver = self._pulling.Receiver(
            self._opened(), admit, self._retries, responses=self._responses, durable=self._durable,
            dead_letters=self._dead_letters, ack_wait=self._ack_wait.total_seconds(),
            wait=self._wait.total_seconds(),
        )  # fmt: skip
        await receiver.run(self._concurrency)

    def _opened(self) -> JetStream:
        if self._stream is None:
            raise SendFailed("the transport is closed")
        return self._stream


def _read_servers(servers: object) -> list[str]:
    found = [servers] if isinstance(servers, str) else list(servers)  # type: ignore[call-overload]  # refused below
    if not found or not all(isinstance(server, str) and server.strip() for server in found):
        raise ValueError("expected one address or several, as nats://host:4222")  # they may hold a password
    return found


def _read_subject(subject: object) -> str:
    if not isinstance(subject, str) or not _SUBJECT.fullmatch(subject):
        raise ValueError(f"expected a subject without wildcards, as pay.requests, got {subject!r}")
    return subject


def _read_durable(durable: object) -> str:
    if not isinstance(durable, str) or not _DURABLE.fullmatch(durable):
        raise ValueError(f"expected a name of letters, digits, - and _, got {durable!r}")
    return durable
