"""All workloads, in the order of the table."""

from __future__ import annotations

from benchmarks.figures import Workload
from benchmarks.workloads import (
    answer_latency,
    asks,
    children,
    claims,
    csv_payments,
    drain,
    idle,
    latency,
    memory,
    signal_latency,
    signal_many,
    start,
    start_many,
    streams,
    ten_steps,
    three_steps,
    timer,
    webhooks,
)

ALL: dict[str, Workload] = {
    module.WORKLOAD.name: module.WORKLOAD
    for module in (
        drain, ten_steps, three_steps, start, start_many, latency, signal_latency, signal_many, children, asks,
        webhooks, csv_payments, answer_latency, timer, idle, memory, claims, streams,
    )
}  # fmt: skip
KNOWN: dict[str, Workload] = ALL | {streams.MILLION.name: streams.MILLION}
"""With those that take long, and run only if they are named."""
