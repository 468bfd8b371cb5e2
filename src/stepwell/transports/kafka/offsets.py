"""How far each partition of a topic is settled: up to the first taken record that is not."""

from __future__ import annotations

from collections.abc import Collection


class Offsets:
    """Counts what is taken and what is settled, in any order; says how far a partition's offset may move."""

    def __init__(self) -> None:
        self._open: dict[int, dict[int, None]] = {}  # by partition: records that are taken and not settled, in order
        self._ends: dict[int, int] = {}  # by partition: the offset behind the last taken record
        self._reported: dict[int, int] = {}

    def __len__(self) -> int:
        """How many are taken and not settled."""
        return sum(map(len, self._open.values()))

    def take(self, partition: int, offset: int) -> None:
        self._open.setdefault(partition, {})[offset] = None
        self._ends[partition] = offset + 1

    def settle(self, partition: int, offset: int) -> None:
        self._open.get(partition, {}).pop(offset, None)

    def forget(self, partitions: Collection[int]) -> None:
        """Forget partitions that others have now."""
        for partition in partitions:
            for known in (self._open, self._ends, self._reported):
                known.pop(partition, None)

    @property
    def waiting(self) -> frozenset[int]:
        """Partitions with unsettled records."""
        return frozenset(partition for partition, offsets in self._open.items() if offsets)

    def advance(self) -> dict[int, int]:
        """The partitions that are settled further than at the last call, and how far."""
        reached = {partition: next(iter(self._open[partition]), end) for partition, end in self._ends.items()}
        moved = {partition: end for partition, end in reached.items() if end > self._reported.get(partition, -1)}
        self._reported |= moved
        return moved
