"""The queues of a worker: slots, buffers, demand."""

from __future__ import annotations

import pytest

from stepwell._runtime.lanes import BETWEEN_YIELDS, MOST_TURNS, Lane, Lanes, Turns
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


def test_where_limits_are_waited_for_nothing_comes_on_top_of_the_free_slots() -> None:
    lane = lane_with(5, 3)
    lane.is_limited = True

    assert lane.demand(4, 1) == 2


@pytest.mark.parametrize(
    ("running", "is_swift", "prefetch", "demand"),
    [
        (100, False, 0, 0),  # all slots are taken, for as long as nobody knows
        (100, True, 0, 100),  # they will be free
        (60, False, 0, 0),  # few are free: soon more are, and can be asked for together
        (50, False, 0, 50),
        (50, True, 0, 100),
        (100, True, 20, 120),
    ],
)
def test_while_claims_begin_the_demand_is_what_will_be_free(
    *, running: int, is_swift: bool, prefetch: int, demand: int
) -> None:
    lane = Lane("default", 100)
    lane.running, lane.is_beginning, lane.is_swift = running, True, is_swift

    assert lane.demand(prefetch, 1) == demand


def test_no_more_than_one_batch_is_claimed_ahead_and_none_of_what_takes_turns_or_needs_limits() -> None:
    full, fair, limited = (Lane("default", 1) for _ in range(3))
    for lane in (full, fair, limited):
        lane.running, lane.is_beginning, lane.is_swift = 1, True, True
    full.buffer.append(make_claim(id=1))
    fair.turns = Turns()
    limited.is_bare = False

    assert [lane.demand(0, 1) for lane in (full, fair, limited)] == [0, 0, 0]


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


@pytest.mark.parametrize(
    ("left_behind", "paused", "priority", "lets"),
    [(None, False, 0, True), (0, False, 0, True), (-1, False, 0, False), (None, True, 0, False), (5, True, 0, False)],
)
def test_nothing_runs_ahead_of_more_urgent_work_nor_past_a_pause(
    left_behind: int | None, *, paused: bool, priority: int, lets: bool
) -> None:
    lane = Lane("default", 5)
    lane.left_behind, lane.is_paused = left_behind, paused

    assert lane.lets_run_ahead(priority) is lets


@pytest.mark.parametrize(("waiting", "lets"), [([], True), ([0], True), ([3], True), ([-1, 3], False)])
def test_nothing_runs_ahead_of_more_urgent_claims_that_wait_for_a_slot(waiting: list[int], *, lets: bool) -> None:
    lane = Lane("default", 1)
    lane.buffer.extend(make_claim(id=i, priority=priority) for i, priority in enumerate(waiting))

    assert lane.lets_run_ahead(0) is lets


def test_where_no_slot_is_free_one_makes_room_for_news_and_the_others_run_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However often news come, be it by what went back itself: so a busy queue keeps its pace."""
    now = 7.0
    monkeypatch.setattr("stepwell._runtime.lanes.perf_counter", lambda: now)
    lanes = Lanes({"a": 2})
    lane = lanes["a"]
    lane.running = 2
    told = []

    for _ in range(2):
        for _ in range(3):
            told.append(lane.lets_run_ahead(0))
            lanes.mark_ready("a")
        now += 2 * BETWEEN_YIELDS

    assert told == [True, False, True, False, True, True]


def test_nobody_makes_room_for_news_while_a_slot_is_free() -> None:
    lanes = Lanes({"a": 2})
    lanes["a"].running = 1
    lanes.mark_ready("a")

    assert lanes["a"].lets_run_ahead(0)


def test_a_pause_is_noted_once_and_taken_back_once() -> None:
    lanes = Lanes({"a": 1, "b": 1})

    noted = [[lane.queue for lane in lanes.note_paused(paused)] for paused in (["a", "c"], ["a"], ["b"], [])]

    assert noted == [["a"], [], ["a", "b"], ["b"]]
    assert not any(lane.is_paused for lane in lanes)


def test_a_lane_that_stays_fair_goes_on_where_it_was() -> None:
    lanes = Lanes({"a": 1, "b": 1})
    lanes.note_fair(["a"])
    turns = lanes["a"].turns

    lanes.note_fair(["a", "b"])
    assert lanes["a"].turns is turns

    lanes.note_fair(["b"])
    assert lanes["a"].turns is None


def test_turns_of_priorities_that_were_not_claimed_from_for_long_are_forgotten() -> None:
    turns = Turns()
    turns.note(dict.fromkeys(range(MOST_TURNS), 1))

    turns.note({0: 2})
    turns.note({-7: 3})

    assert len(turns.after) == MOST_TURNS
    assert (turns.after[0], turns.after[-7], 1 in turns.after) == (2, 3, False)


def test_workers_begin_at_different_places() -> None:
    assert len({Turns().start for _ in range(20)}) == 20


def test_who_is_away_keeps_its_slot_where_steps_take_time() -> None:
    lane = Lane("default", 5)
    lane.running, lane.away = 2, 3

    assert (lane.free, lane.has_slot) == (0, False)


@pytest.mark.parametrize(("away", "free"), [(3, 3), (4 * 5, 3), (4 * 5 + 2, 1), (4 * 5 + 3, 0)])
def test_who_is_away_leaves_its_slot_to_others_where_steps_are_short(away: int, free: int) -> None:
    """As many as the worker can run soon: those beyond keep theirs."""
    lane = Lane("default", 5)
    lane.is_swift, lane.running, lane.away = True, 2, away

    assert (lane.free, lane.has_slot) == (free, free > 0)


def test_slots_are_reserved_as_far_as_they_are_free_and_not_claimed_for_meanwhile() -> None:
    lane = idle_lane(10)
    lane.running = 3

    assert (lane.reserve(5), lane.reserve(5), lane.reserve(5)) == (5, 2, 0)
    assert (lane.free, lane.demand(0, 1)) == (0, 0)


def test_where_steps_are_over_as_soon_as_they_begin_as_many_more_are_reserved_as_there_are_slots() -> None:
    lane = idle_lane(10)
    lane.is_swift = True

    assert lane.reserve(50) == 20


@pytest.mark.parametrize(
    ("name", "value"),
    [("is_paused", True), ("is_closed", True), ("is_limited", True), ("turns", Turns()), ("left_behind", 3)],
)
def test_no_slot_is_reserved_where_a_claim_would_bring_something_else_or_be_refused(name: str, value: object) -> None:
    lane = idle_lane(10)
    setattr(lane, name, value)

    assert lane.reserve(5) == 0


@pytest.mark.parametrize(("is_swift", "most"), [(False, 10), (True, 20)])
def test_what_may_wait_is_passed_by_no_more_than_have_slots_until_a_claim_has_looked(is_swift: bool, most: int) -> None:
    lane = idle_lane(10)
    lane.ready, lane.is_swift = True, is_swift

    passing = 0
    for _ in range(10):
        kept = lane.reserve(4)
        lane.unreserve(kept, kept)  # they have run
        passing += kept

    assert passing == most


def idle_lane(slots: int) -> Lane:
    lane = Lane("default", slots)
    lane.ready = False
    return lane
