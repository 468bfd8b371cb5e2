"""The example's Kafka cluster, as the tests steer it: restarts, and records that are refused."""

from __future__ import annotations

import ctypes
from typing import Final

from examples.csv_payments import cluster

BROKER: Final = 1
PRODUCE: Final = 0  # the number of that request
_POINTER = ctypes.c_void_p


class Cluster(cluster.Cluster):
    """One broker. Its data outlives its restarts."""

    functions = cluster.Cluster.functions | {
        "rd_kafka_mock_broker_set_down": (ctypes.c_int, [_POINTER, ctypes.c_int32]),
        "rd_kafka_mock_broker_set_up": (ctypes.c_int, [_POINTER, ctypes.c_int32]),
        "rd_kafka_mock_push_request_errors_array": (
            None, [_POINTER, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int)],
        ),
    }  # fmt: skip

    def create(self, topic: str, partitions: int = 2) -> None:
        super().create(topic, partitions)

    def stop(self) -> None:
        self._library.rd_kafka_mock_broker_set_down(self._cluster, BROKER)

    def start(self) -> None:
        self._library.rd_kafka_mock_broker_set_up(self._cluster, BROKER)

    def refuse_next_records(self, *errors: int) -> None:
        """Let the next records be refused with these errors of Kafka, one by one."""
        array = (ctypes.c_int * len(errors))(*errors)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, PRODUCE, len(errors), array)
