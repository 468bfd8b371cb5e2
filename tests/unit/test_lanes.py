"""The queues of a worker: slots, buffers, demand."""

from __future__ import annotations

import pytest

from stepwell._runtime.lanes import Lane, Lanes
from tests.unit.claims import make_claim


def lane_with(slots: int, running: int, buffered: int = 0) -> Lane:
    lane = Lane("default", slots)
    lane.running = running
    lane.buffer.extend(make_claim(id=i) for i in range(buffered))
    return lane


@pytest.mark.parametrize(
    ("slots", "running", "buffered", "prefetch", "min_demand", "demand"),
    [
        (5, 0, 0, 0, 1, 5),  # all free
        (5, 5, 0, 0, 1, 0),  # all taken
        (5, 3, 0, 4, 1, 6),  # the prefetch comes on top
        (5, 5, 4, 4, 1, 0),  # the buffer is full
        (5, 5, 1, 4, 1, 3),  # the buffer has room
        (5, 3, 0, 0, 3, 0),  # two free are too few to ask for
        (5, 2, 0, 0, 3, 3),
        (5, 0, 0, 0, 50, 5),  # a demand nobody could meet is capped
        (5, 1, 0, 0, 50, 0),
    ],
)
def test_the_demand_is_the_free_slots_and_the_prefetch(
    slots: int, running: int, buffered: int, prefetch: int, min_demand: int, demand: int
) -> None:
    """Scenario 84."""
    assert lane_with(slots, running, buffered).demand(prefetch, min_demand) == demand


def test_what_waits_in_the_buffer_takes_a_slot_too() -> None:
    assert lane_with(5, 2, 2).free == 1


def test_a_lane_is_ready_from_the_start() -> None:
    assert all(lane.ready for lane in Lanes({"a": 1, "b": 2}))


def test_marking_a_queue_ready_says_whether_it_is_ours() -> None:
    lanes = Lanes({"a": 1})
    lanes["a"].ready = False

    assert lanes.mark_ready("a")
    assert not lanes.mark_ready("b")
    assert lanes["a"].ready


def test_lanes_know_their_names_and_slots() -> None:
    lanes = Lanes({"a": 1, "b": 2})

    assert (lanes.names, lanes.slots) == (["a", "b"], 3)


def test_free_slots_are_none_for_a_foreign_queue_and_never_negative() -> None:
    lanes = Lanes({"a": 1})
    lanes["a"].running = 3

    assert (lanes.free("a"), lanes.free("b")) == (0, 0)
