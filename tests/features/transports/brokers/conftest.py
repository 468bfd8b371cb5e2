"""A Kafka cluster for the tests of a file. Files of tests run beside each other, and Kafka's wait for much."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.features.transports.brokers.clusters import Cluster
    from tests.features.transports.brokers.kafka_side import KafkaSide


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    from tests.features.transports.brokers.clusters import Cluster  # noqa: PLC0415 - it needs the extra

    cluster = Cluster()
    yield cluster
    cluster.close()


@pytest.fixture
async def kafka(cluster: Cluster) -> AsyncIterator[KafkaSide]:
    from tests.features.transports.brokers.kafka_side import KafkaSide  # noqa: PLC0415 - the same

    async with KafkaSide(cluster) as side:
        yield side
