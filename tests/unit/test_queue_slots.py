"""The queues of a worker: slots, buffers, demand."""

from __future__ import annotations

import pytest

from stepwell._worker.queue_slots import BETWEEN_YIELDS, MOST_TURNS, Access, AllQueueSlots, QueueSlots, Turns
from tests.unit.claims import make_claim


def queue_with(slots: int, running: int, buffered: int = 0) -> QueueSlots:
    queue_slots = QueueSlots("default", slots)
    queue_slots.running = running
    queue_slots.buffer.extend(make_claim(id=i) for i in range(buffered))
    return queue_slots


@pytest.mark.parametrize(
    ("slots", "running", "buffered", "prefetch", "min_demand", "demand"),
    [
        (5, 0, 0, 0, 1, 5),  # all free
        (5, 5, 0, 0, 1, 0),  # all taken
        (5, 3, 0, 4, 1, 6),  # the prefetch is added
        (5, 5, 4, 4, 1, 0),  # the buffer is full
        (5, 5, 1, 4, 1, 3),  # the buffer has room
        (5, 3, 0, 0, 3, 0),  # two free are too few to ask for
        (5, 2, 0, 0, 3, 3),
        (5, 0, 0, 0, 50, 5),  # a demand that cannot be met is capped
        (5, 1, 0, 0, 50, 0),
    ],
)
def test_the_demand_is_the_free_slots_and_the_prefetch(
    slots: int, running: int, buffered: int, prefetch: int, min_demand: int, demand: int
) -> None:
    """Scenario 84."""
    assert queue_with(slots, running, buffered).demand(prefetch, min_demand) == demand


def test_a_limited_queue_demands_no_more_than_its_free_slots() -> None:
    queue_slots = queue_with(5, 3)
    queue_slots.backlog.is_limited = True

    assert queue_slots.demand(4, 1) == 2


@pytest.mark.parametrize(
    ("running", "steps_are_short", "prefetch", "demand"),
    [
        (100, False, 0, 0),  # all slots are taken, for an unknown time
        (100, True, 0, 100),  # they will be free
        (60, False, 0, 0),  # few are free: soon more are, and can be asked for together
        (50, False, 0, 50),
        (50, True, 0, 100),
        (100, True, 20, 120),
    ],
)
def test_the_demand_while_claims_mark_started_is_what_will_be_free(
    *, running: int, steps_are_short: bool, prefetch: int, demand: int
) -> None:
    queue_slots = QueueSlots("default", 100)
    queue_slots.running, queue_slots.is_beginning, queue_slots.steps_are_short = running, True, steps_are_short

    assert queue_slots.demand(prefetch, 1) == demand


def test_one_batch_is_claimed_ahead_and_none_of_fair_or_limited_queues() -> None:
    full, fair, limited = (QueueSlots("default", 1) for _ in range(3))
    for queue_slots in (full, fair, limited):
        queue_slots.running, queue_slots.is_beginning, queue_slots.steps_are_short = 1, True, True
    full.buffer.append(make_claim(id=1))
    fair.backlog.turns = Turns()
    limited.backlog.fast_claim_ok = False

    assert [queue_slots.demand(0, 1) for queue_slots in (full, fair, limited)] == [0, 0, 0]


def test_a_claim_in_the_buffer_takes_a_slot_too() -> None:
    assert queue_with(5, 2, 2).free == 1


def test_a_queue_is_ready_from_the_start() -> None:
    assert all(queue_slots.backlog.ready for queue_slots in AllQueueSlots({"a": 1, "b": 2}))


def test_mark_ready_returns_whether_the_worker_has_the_queue() -> None:
    all_queue_slots = AllQueueSlots({"a": 1})
    all_queue_slots["a"].backlog.ready = False

    assert all_queue_slots.mark_ready("a")
    assert not all_queue_slots.mark_ready("b")
    assert all_queue_slots["a"].backlog.ready


def test_queue_slots_know_their_names_and_numbers() -> None:
    all_queue_slots = AllQueueSlots({"a": 1, "b": 2})

    assert (all_queue_slots.names, all_queue_slots.slots) == (["a", "b"], 3)


def test_free_slots_are_none_for_a_foreign_queue_and_never_negative() -> None:
    all_queue_slots = AllQueueSlots({"a": 1})
    all_queue_slots["a"].running = 3

    assert (all_queue_slots.free("a"), all_queue_slots.free("b")) == (0, 0)


@pytest.mark.parametrize(
    ("left_behind", "paused", "priority", "lets"),
    [(None, False, 0, True), (0, False, 0, True), (-1, False, 0, False), (None, True, 0, False), (5, True, 0, False)],
)
def test_nothing_runs_ahead_of_more_urgent_work_nor_past_a_pause(
    left_behind: int | None, *, paused: bool, priority: int, lets: bool
) -> None:
    queue_slots = QueueSlots("default", 5)
    queue_slots.backlog.left_behind, queue_slots.access = left_behind, Access.PAUSED if paused else Access.OPEN

    assert queue_slots.lets_run_ahead(priority) is lets


@pytest.mark.parametrize(("waiting", "lets"), [([], True), ([0], True), ([3], True), ([-1, 3], False)])
def test_nothing_runs_ahead_of_more_urgent_claims_that_wait_for_a_slot(waiting: list[int], *, lets: bool) -> None:
    queue_slots = QueueSlots("default", 1)
    queue_slots.buffer.extend(make_claim(id=i, priority=priority) for i, priority in enumerate(waiting))

    assert queue_slots.lets_run_ahead(0) is lets


def test_one_step_yields_to_new_work_and_others_run_ahead_in_a_full_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However often notifications come, also those of released rows: so a busy queue keeps its pace."""
    now = 7.0
    monkeypatch.setattr("stepwell._worker.queue_slots.perf_counter", lambda: now)
    all_queue_slots = AllQueueSlots({"a": 2})
    queue_slots = all_queue_slots["a"]
    queue_slots.running = 2
    told = []

    for _ in range(2):
        for _ in range(3):
            told.append(queue_slots.lets_run_ahead(0))
            all_queue_slots.mark_ready("a")
        now += 2 * BETWEEN_YIELDS

    assert told == [True, False, True, False, True, True]


def test_no_step_yields_to_new_work_while_a_slot_is_free() -> None:
    all_queue_slots = AllQueueSlots({"a": 2})
    all_queue_slots["a"].running = 1
    all_queue_slots.mark_ready("a")

    assert all_queue_slots["a"].lets_run_ahead(0)


def test_a_pause_is_noted_once_and_cleared_once() -> None:
    all_queue_slots = AllQueueSlots({"a": 1, "b": 1})

    noted = [[queue_slots.queue for queue_slots in all_queue_slots.note_paused(paused)] for paused in (["a", "c"],
                                                                                                       ["a"], ["b"],
                                                                                                       [])]

    assert noted == [["a"], [], ["a", "b"], ["b"]]
    assert not any(queue_slots.is_paused for queue_slots in all_queue_slots)


def test_a_queue_that_stays_fair_keeps_its_turns() -> None:
    all_queue_slots = AllQueueSlots({"a": 1, "b": 1})
    all_queue_slots.note_fair(["a"])
    turns = all_queue_slots["a"].backlog.turns

    all_queue_slots.note_fair(["a", "b"])
    assert all_queue_slots["a"].backlog.turns is turns

    all_queue_slots.note_fair(["b"])
    assert all_queue_slots["a"].backlog.turns is None


def test_turns_of_long_unused_priorities_are_forgotten() -> None:
    turns = Turns()
    turns.note(dict.fromkeys(range(MOST_TURNS), 1))

    turns.note({0: 2})
    turns.note({-7: 3})

    assert len(turns.after) == MOST_TURNS
    assert (turns.after[0], turns.after[-7], 1 in turns.after) == (2, 3, False)


def test_workers_start_their_turns_at_different_places() -> None:
    assert len({Turns().start for _ in range(20)}) == 20


def test_a_claim_away_in_a_commit_keeps_its_slot_if_steps_are_long() -> None:
    queue_slots = QueueSlots("default", 5)
    queue_slots.running, queue_slots.away = 2, 3

    assert (queue_slots.free, queue_slots.has_slot) == (0, False)


@pytest.mark.parametrize(("away", "free"), [(3, 3), (4 * 5, 3), (4 * 5 + 2, 1), (4 * 5 + 3, 0)])
def test_a_claim_away_in_a_commit_frees_its_slot_if_steps_are_short(away: int, free: int) -> None:
    """As many as the worker can run soon: those beyond keep theirs."""
    queue_slots = QueueSlots("default", 5)
    queue_slots.steps_are_short, queue_slots.running, queue_slots.away = True, 2, away

    assert (queue_slots.free, queue_slots.has_slot) == (free, free > 0)


def test_only_free_slots_are_reserved_and_they_are_not_claimed_for() -> None:
    queue_slots = idle_queue(10)
    queue_slots.running = 3

    assert (queue_slots.reserve(5), queue_slots.reserve(5), queue_slots.reserve(5)) == (5, 2, 0)
    assert (queue_slots.free, queue_slots.demand(0, 1)) == (0, 0)


def test_twice_the_slots_are_reserved_if_steps_are_short() -> None:
    queue_slots = idle_queue(10)
    queue_slots.steps_are_short = True

    assert queue_slots.reserve(50) == 20


@pytest.mark.parametrize(
    ("name", "value"),
    [("access", Access.PAUSED), ("access", Access.CLOSED), ("is_limited", True), ("turns", Turns()),
     ("left_behind", 3)],
)
def test_no_slot_is_reserved_if_a_claim_would_take_other_rows_or_none(name: str, value: object) -> None:
    queue_slots = idle_queue(10)
    setattr(queue_slots if name == "access" else queue_slots.backlog, name, value)

    assert queue_slots.reserve(5) == 0


@pytest.mark.parametrize(("steps_are_short", "most"), [(False, 10), (True, 20)])
def test_reservations_without_a_claim_between_them_are_bounded_by_the_slots(
    steps_are_short: bool, most: int
) -> None:
    queue_slots = idle_queue(10)
    queue_slots.backlog.ready, queue_slots.steps_are_short = True, steps_are_short

    passing = 0
    for _ in range(10):
        kept = queue_slots.reserve(4)
        queue_slots.unreserve(kept, kept)  # they have run
        passing += kept

    assert passing == most


def idle_queue(slots: int) -> QueueSlots:
    queue_slots = QueueSlots("default", slots)
    queue_slots.backlog.ready = False
    return queue_slots
