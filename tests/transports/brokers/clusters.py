"""A Kafka cluster inside librdkafka, reached over the wire: its mock brokers, steered by its C functions.

What the settings of a client can not say (topics, restarts, how long a group waits for members) is said here.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any, Final

import confluent_kafka

BROKER: Final = 1
PRODUCE: Final = 0  # the number of that request
_POINTER = ctypes.c_void_p
_FUNCTIONS: Final[dict[str, tuple[Any, list[Any]]]] = {
    "rd_kafka_conf_new": (_POINTER, []),
    "rd_kafka_conf_set": (ctypes.c_int, [_POINTER, *[ctypes.c_char_p] * 3, ctypes.c_size_t]),
    "rd_kafka_new": (_POINTER, [ctypes.c_int, _POINTER, ctypes.c_char_p, ctypes.c_size_t]),
    "rd_kafka_handle_mock_cluster": (_POINTER, [_POINTER]),
    "rd_kafka_mock_cluster_bootstraps": (ctypes.c_char_p, [_POINTER]),
    "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, [_POINTER, ctypes.c_int32]),
    "rd_kafka_mock_topic_create": (ctypes.c_int, [_POINTER, ctypes.c_char_p, ctypes.c_int, ctypes.c_int]),
    "rd_kafka_mock_broker_set_down": (ctypes.c_int, [_POINTER, ctypes.c_int32]),
    "rd_kafka_mock_broker_set_up": (ctypes.c_int, [_POINTER, ctypes.c_int32]),
    "rd_kafka_mock_push_request_errors_array": (
        None, [_POINTER, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int)],
    ),
    "rd_kafka_destroy": (None, [_POINTER]),
}  # fmt: skip


def _load() -> Any:
    """The librdkafka that the client's wheel brings along, and that the client has loaded."""
    folder = Path(confluent_kafka.__file__).parent.with_name("confluent_kafka.libs")
    library = ctypes.CDLL(str(next(folder.glob("librdkafka*"))))
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Cluster:
    """One broker. What it holds outlives its restarts."""

    def __init__(self) -> None:
        self._library = _load()
        said = ctypes.create_string_buffer(512)
        settings = self._library.rd_kafka_conf_new()
        for name, value in ((b"test.mock.num.brokers", b"1"), (b"log_level", b"0")):
            assert self._library.rd_kafka_conf_set(settings, name, value, said, len(said)) == 0, said.value
        self._client = self._library.rd_kafka_new(0, settings, said, len(said))
        assert self._client, said.value
        self._cluster = self._library.rd_kafka_handle_mock_cluster(self._client)
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)
        self.address: str = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def create(self, topic: str, partitions: int = 2) -> None:
        assert self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1) == 0

    def stop(self) -> None:
        self._library.rd_kafka_mock_broker_set_down(self._cluster, BROKER)

    def start(self) -> None:
        self._library.rd_kafka_mock_broker_set_up(self._cluster, BROKER)

    def refuse_next_records(self, *errors: int) -> None:
        """Let the next records be refused with these errors of Kafka, one by one."""
        array = (ctypes.c_int * len(errors))(*errors)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, PRODUCE, len(errors), array)

    def close(self) -> None:
        self._library.rd_kafka_destroy(self._client)
