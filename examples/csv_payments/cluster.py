"""A Kafka cluster for tests, in its own process: `python -m examples.csv_payments.cluster TOPIC…`.

It is the mock cluster inside librdkafka: one broker that speaks Kafka's protocol on a port of this machine, and
keeps its records in memory. Prints its address, and ends when its standard input does. Use a real Kafka elsewhere.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any, Final, TypeAlias

import confluent_kafka

PARTITIONS: Final = 4
Functions: TypeAlias = dict[str, tuple[Any, list[Any]]]
"""Functions of librdkafka by name: the types of their result and of their arguments."""

_POINTER = ctypes.c_void_p
_FUNCTIONS: Final[Functions] = {
    "rd_kafka_conf_new": (_POINTER, []),
    "rd_kafka_conf_set": (ctypes.c_int, [_POINTER, *[ctypes.c_char_p] * 3, ctypes.c_size_t]),
    "rd_kafka_new": (_POINTER, [ctypes.c_int, _POINTER, ctypes.c_char_p, ctypes.c_size_t]),
    "rd_kafka_handle_mock_cluster": (_POINTER, [_POINTER]),
    "rd_kafka_mock_cluster_bootstraps": (ctypes.c_char_p, [_POINTER]),
    "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, [_POINTER, ctypes.c_int32]),
    "rd_kafka_mock_topic_create": (ctypes.c_int, [_POINTER, ctypes.c_char_p, ctypes.c_int, ctypes.c_int]),
    "rd_kafka_destroy": (None, [_POINTER]),
}  # fmt: skip


class Cluster:
    """One broker, which lives until its process ends, or until it is closed."""

    functions = _FUNCTIONS

    def __init__(self) -> None:
        self._library = _load(self.functions)
        error_text = ctypes.create_string_buffer(512)
        settings = self._library.rd_kafka_conf_new()
        for name, value in ((b"test.mock.num.brokers", b"1"), (b"log_level", b"0")):
            if self._library.rd_kafka_conf_set(settings, name, value, error_text, len(error_text)) != 0:
                raise RuntimeError(error_text.value.decode())
        self._client = self._library.rd_kafka_new(0, settings, error_text, len(error_text))
        if not self._client:
            raise RuntimeError(error_text.value.decode())
        self._cluster = self._library.rd_kafka_handle_mock_cluster(self._client)
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)
        self.address: str = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def create(self, topic: str, partitions: int = PARTITIONS) -> None:
        if self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1) != 0:
            raise RuntimeError(f"topic {topic} was not created")

    def close(self) -> None:
        self._library.rd_kafka_destroy(self._client)


def _load(functions: Functions) -> Any:
    """The librdkafka in the wheel of confluent-kafka: beside it on Linux, inside it on macOS."""
    home = Path(confluent_kafka.__file__).parent
    places = (home.with_name("confluent_kafka.libs"), home / ".dylibs")
    found = [library for place in places for library in place.glob("librdkafka*")]
    if not found:
        raise RuntimeError("confluent-kafka was not installed from its wheel: there is no librdkafka beside it")
    library = ctypes.CDLL(str(found[0]))
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def main() -> None:
    cluster = Cluster()
    for topic in sys.argv[1:]:
        cluster.create(topic)
    sys.stdout.write(f"{cluster.address}\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
