"""How far a partition's offset may move: never past an unsettled message."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepwell.transports.kafka.offsets import Offsets


@given(st.permutations(range(8)), st.sets(st.integers(0, 7)))
def test_an_offset_moves_to_the_first_unsettled_message(order: list[int], left: set[int]) -> None:
    offsets, open_, reached = Offsets(), set(range(8)), 0
    for offset in range(8):
        offsets.take(0, 100 + 2 * offset)  # with gaps, as in a topic with transactions

    for offset in order:
        if offset not in left:
            offsets.settle(0, 100 + 2 * offset)
            open_.discard(offset)
        reached = offsets.advance().get(0, reached)
        assert reached == (100 + 2 * min(open_) if open_ else 115)

    assert len(offsets) == len(left)
    assert offsets.waiting == ({0} if left else set())


def test_a_revoked_partition_is_forgotten() -> None:
    offsets = Offsets()
    for partition in (0, 1):
        offsets.take(partition, 7)
    offsets.forget([0])
    offsets.settle(0, 7)  # it was under way

    offsets.settle(1, 7)

    assert offsets.advance() == {1: 8}
    offsets.take(0, 3)  # it came back, from further behind
    offsets.settle(0, 3)
    assert offsets.advance() == {0: 4}
