"""The engine: `stepwell worker examples.csv_payments.app:engine`, in the root of the repository.

Reads from the environment: KAFKA_BROKERS; STEPWELL_TOKEN_KEYS, the keys that sign tokens; CSV_PAYMENTS_WRITTEN, yaml
or python; CSV_PAYMENTS_KAFKA, more settings of librdkafka as JSON.
"""

from __future__ import annotations

import json
import os

from examples.csv_payments.pipeline import WRITTEN
from stepwell import Engine

pipeline = WRITTEN[os.environ.get("CSV_PAYMENTS_WRITTEN", "yaml")](
    os.environ.get("KAFKA_BROKERS", "127.0.0.1:9092"),
    # Kafka gives the partitions of a killed worker to others after this time; 6 s is the least it allows.
    {"session.timeout.ms": 6_000, **json.loads(os.environ.get("CSV_PAYMENTS_KAFKA", "{}"))},
)
engine = Engine(machines=[pipeline], transports=pipeline.transports, queues={"default": 100})
