"""The pipeline twice: from the file `pipeline.yaml`, and the same in Python."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from examples.csv_payments.records import PaymentRecord, PaymentStatus
from examples.csv_payments.rejecting import keep
from examples.csv_payments.steps import process_folder, process_input, process_output, process_status
from stepwell.pipelines import Pipeline, await_, load
from stepwell.transports import Kafka

FILE: Final = Path(__file__).with_name("pipeline.yaml")
REQUESTS: Final = "csv-payments.payment.requests"
RESULTS: Final = "csv-payments.payment.results"
TOPICS: Final = (REQUESTS, RESULTS, f"{RESULTS}.dead")


def from_yaml(brokers: str, config: Mapping[str, Any] | None = None) -> Pipeline:
    """The pipeline of the file, which does not contain the brokers."""
    return load(FILE, transports={"kafka": {"brokers": brokers, "config": config}}, rejected=keep)


def in_python(
    brokers: str, config: Mapping[str, Any] | None = None, *, window: int = 500, **options: Any
) -> Pipeline:
    """The same pipeline; with another window, and options of the transport, if need be."""
    provider = Kafka(
        "payment-provider", brokers=brokers, requests=REQUESTS, responses=RESULTS, group="csv-payments-orchestrator",
        key="correlationId", config=config, **options,
    )  # fmt: skip
    ask_provider = await_(
        "Await Payment Provider", over="payment-provider", input=PaymentRecord, output=PaymentStatus, token=True,
        timeout=timedelta(minutes=5), idempotency=("csvId", "recipient", "amount", "currency"), window=window,
    )  # fmt: skip
    return Pipeline(
        "csv-payments", [process_folder, process_input, ask_provider, process_status, process_output],
        rejected=keep, transports=[provider],
    )  # fmt: skip


WRITTEN: Final = {"yaml": from_yaml, "python": in_python}
