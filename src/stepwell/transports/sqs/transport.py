"""SQS: each interaction is a message in a queue; each completion is deleted from another one after it was admitted."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from stepwell._core.interaction import Dispatch
from stepwell.errors import SendFailed
from stepwell.transports.base import Admit, Transport, outlasting
from stepwell.transports.broker.envelope import write_headers, write_interaction
from stepwell.transports.broker.options import Options, import_client, read_author_headers, read_number, read_time

if TYPE_CHECKING:
    from stepwell.transports.sqs.client import Queues

_QUEUE: Final = re.compile(r"(/[A-Za-z0-9_-]+)+")
LONGEST_POLL: Final = timedelta(seconds=20)
MOST_IN_A_BATCH: Final = 10
MOST_HEADERS: Final = 3  # of the ten attributes of a message, seven are ours


class Sqs(Transport):
    """Asks over queues: `Sqs("payments", requests="https://sqs…/ask", responses="https://sqs…/say")`.

    The queues have to exist, and be standard ones. A completion is deleted after it was admitted; a refused one
    goes to `dead_letters`, with the reason. Needs the extra "sqs".
    """

    def __init__(
        self,
        name: str,
        *,
        requests: str,
        responses: str,
        dead_letters: str | None = None,
        region: str | None = None,
        endpoint: str | None = None,
        headers: Mapping[str, str] | None = None,
        tries: int = 30,
        every: timedelta = timedelta(milliseconds=100),
        visibility: timedelta = timedelta(seconds=30),
        wait: timedelta = timedelta(seconds=20),
        concurrency: int = 4,
        batch: int = 10,
        timeout: timedelta = timedelta(seconds=10),
        max_in_flight: int = 50,
        client: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        options = Options("Sqs", name)
        self._polling = import_client("stepwell.transports.sqs.client", "sqs", "Sqs")
        self._requests = options.read("requests", _read_queue, requests)
        self._responses = options.read("responses", _read_queue, responses)
        self._dead_letters = options.read("dead_letters", _read_queue, dead_letters or f"{responses}-dead")
        if len({self._requests, self._responses, self._dead_letters}) < 3:  # noqa: PLR2004 - all are different
            raise options.error("dead_letters", "requests, responses and dead letters need a queue each")
        self._headers = options.read("headers", _read_headers, headers)
        self._retries = options.read_retries(tries, every)
        self._visibility = options.read("visibility", _read_seconds, visibility)
        self._wait = options.read("wait", _read_wait, wait)
        self._concurrency = options.read("concurrency", read_number, concurrency)
        self._batch = options.read("batch", _read_batch, batch)
        self._timeout = options.read("timeout", read_time, timeout)
        self.send_timeout = outlasting(self._timeout)
        self.max_in_flight = options.read("max_in_flight", read_number, max_in_flight)
        given = {"region_name": region, "endpoint_url": endpoint}
        self._client = {**dict(client or {}), **{name: value for name, value in given.items() if value is not None}}
        self._queues: Queues | None = None

    async def open(self) -> None:
        if self._queues is None:
            queues = self._polling.Queues(
                self.name, self._client, timeout=self._timeout.total_seconds(), wait=self._wait,
                connections=self.max_in_flight + self._concurrency * (self._batch + 1),
            )  # fmt: skip
            await queues.open(self._requests, self._responses, self._dead_letters)
            self._queues = queues

    async def close(self) -> None:
        queues, self._queues = self._queues, None
        if queues is not None:
            await queues.close()

    async def send(self, dispatch: Dispatch, /) -> Mapping[str, Any]:
        headers = write_headers(dispatch, self._headers, queue=self._responses)
        message_id = await self._opened().send(self._requests, write_interaction(dispatch).decode(), headers)
        return {"requestQueue": self._requests, "responseQueue": self._responses, "messageId": message_id}

    async def receive(self, admit: Admit, /) -> None:
        poller = self._polling.Poller(
            self._opened(), admit, self._retries, responses=self._responses, dead_letters=self._dead_letters,
            visibility=self._visibility, batch=self._batch,
        )  # fmt: skip
        await poller.run(self._concurrency)

    def _opened(self) -> Queues:
        if self._queues is None:
            raise SendFailed("the transport is closed")
        return self._queues


def _read_queue(url: object) -> str:
    if not isinstance(url, str):
        raise TypeError(f"expected the URL of a queue, got {url!r}")
    parts = urlsplit(url)
    if ".fifo" in unquote(parts.path).lower():  # whatever stands behind it
        raise ValueError("a FIFO queue drops repeated messages; use a standard queue")
    is_plain = parts.scheme in ("http", "https") and parts.hostname and _QUEUE.fullmatch(parts.path)
    if not is_plain or parts.query or parts.fragment or parts.username:
        raise ValueError("expected the URL of a queue, as https://sqs.eu-west-1.amazonaws.com/123456789012/name")
    return url


def _read_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    read = read_author_headers(headers, "aws.", "amazon.")
    if len(read) > MOST_HEADERS:
        raise ValueError(f"a message has ten attributes, of which {MOST_HEADERS} are yours; got {len(read)}")
    for name, value in read.items():
        if not value or not re.fullmatch(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", name):
            raise ValueError(f"{name}: SQS takes names of letters, digits, dots, - and _; values are not empty")
    return read


def _read_seconds(value: object) -> int:
    seconds = read_time(value).total_seconds()
    if not seconds.is_integer():
        raise ValueError(f"expected whole seconds, got {value}")
    return int(seconds)


def _read_wait(value: object) -> int:
    """Not 0: without a wait the loops would poll without pause, and each request costs."""
    seconds = _read_seconds(value)
    if timedelta(seconds=seconds) > LONGEST_POLL:
        raise ValueError(f"expected at most {LONGEST_POLL}, got {value}")
    return seconds


def _read_batch(value: object) -> int:
    if read_number(value) > MOST_IN_A_BATCH:
        raise ValueError(f"SQS gives at most {MOST_IN_A_BATCH} messages at a time, got {value}")
    return read_number(value)
