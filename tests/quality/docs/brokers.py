"""Brokers for the pages that ask over one, and the variables by which these find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path


@contextmanager
def broker_for(page: Path, folder: Path) -> Iterator[Mapping[str, str]]:
    """Start what a page needs, for as long as it runs."""
    start = _BROKERS.get(page.stem)
    if start is None:
        yield {}
    else:
        with start(folder) as variables:
            yield variables


@contextmanager
def _nats(folder: Path) -> Iterator[Mapping[str, str]]:
    from tests.features.transports.brokers.nats_side import NatsServer  # noqa: PLC0415 - only this page needs it

    server = NatsServer(folder / "nats")
    server.start()
    try:
        yield {"NATS_URL": server.url}
    finally:
        server.stop()


@contextmanager
def _kafka(_: Path) -> Iterator[Mapping[str, str]]:
    from tests.features.transports.brokers.clusters import Cluster  # noqa: PLC0415 - the same

    cluster = Cluster()
    for topic in ("payments.requests", "payments.results", "payments.results.dead"):
        cluster.create(topic)
    try:
        yield {"KAFKA_BROKERS": cluster.address}
    finally:
        cluster.close()


@contextmanager
def _sqs(_: Path) -> Iterator[Mapping[str, str]]:
    from tests.features.transports.brokers.sqs_side import REGION, SqsServer  # noqa: PLC0415 - the same

    server = SqsServer()
    try:
        yield {
            "AWS_ENDPOINT_URL": server.url, "AWS_DEFAULT_REGION": REGION, "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
        }  # fmt: skip
    finally:
        server.stop()


_BROKERS: dict[str, Callable[[Path], AbstractContextManager[Mapping[str, str]]]] = {
    "ask-over-kafka": _kafka, "ask-over-nats": _nats, "ask-over-sqs": _sqs,
}  # fmt: skip
