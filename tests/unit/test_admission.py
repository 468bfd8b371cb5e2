"""Admission by limits: decided row by row, most urgent first."""

from __future__ import annotations

from datetime import UTC, datetime

from stepwell._core.limits.admission import Bucket, Candidate, Gate, admit
from stepwell._core.status import Hold

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def row(id_: int, limit: str | None = None, rate: str | None = None, weight: int = 1, **more: int | bool) -> Candidate:
    priority = int(more.get("priority", 0))
    return Candidate(id_, (priority, NOW, id_), limit, rate, weight, bool(more.get("is_busy", False)))


def bucket(tokens: float, *, burst: int | None = 5, per_second: float = 1.0) -> Bucket:
    return Bucket(burst, per_second, tokens)


def test_the_most_urgent_rows_get_the_lowest_free_slots_and_others_wait() -> None:
    gates = {"a": Gate(3, {2})}

    decided = admit([row(3, "a"), row(2, "a"), row(1, "a"), row(4, "a", priority=-1)], gates, {})

    assert decided.admitted == [(4, 1), (1, 3)]
    assert decided.held == [(2, Hold.LIMIT, None), (3, Hold.LIMIT, None)]


def test_a_lowered_limit_admits_no_row_before_fewer_than_n_execute() -> None:
    assert admit([row(1, "a")], {"a": Gate(2, {7, 8})}, {}).admitted == []
    assert admit([row(1, "a")], {"a": Gate(2, {8})}, {}).admitted == [(1, 1)]


def test_a_limit_of_zero_admits_no_row() -> None:
    assert admit([row(1, "a")], {"a": Gate(0, set())}, {}).held == [(1, Hold.LIMIT, None)]


def test_the_first_row_that_lacks_tokens_blocks_the_lighter_ones_behind_it() -> None:
    buckets = {"r": bucket(4)}

    decided = admit([row(1, rate="r", weight=2), row(2, rate="r", weight=3), row(3, rate="r")], {}, buckets)

    assert decided.admitted == [(1, None)]
    assert [id_ for id_, _, _ in decided.held] == [2, 3]
    assert (buckets["r"].tokens, buckets["r"].head_weight, buckets["r"].wait) == (2, 3, 1.0)


def test_no_row_overtakes_a_more_urgent_waiter_however_many_tokens_exist() -> None:
    buckets = {"r": bucket(5)}
    buckets["r"].head, buckets["r"].head_weight = (0, NOW, 5), 5

    decided = admit([row(9, rate="r"), row(2, rate="r")], {}, buckets)

    assert (decided.admitted, decided.held) == ([(2, None)], [(9, Hold.RATE, None)])
    assert buckets["r"].wait == 1.0


def test_a_waiter_of_an_unclaimed_queue_is_overtaken_and_checked_later() -> None:
    buckets = {"r": bucket(1)}
    buckets["r"].see_idle((0, NOW, 2), 4)
    buckets["r"].see_idle((0, NOW, 1), 3)

    decided = admit([row(9, rate="r")], {}, buckets)

    assert (decided.admitted, buckets["r"].wait) == ([(9, None)], 3.0)


def test_parts_have_their_own_slots_and_tokens() -> None:
    gates = {"a:1": Gate(1, set()), "a:2": Gate(1, {1})}
    buckets = {"r:1": bucket(0), "r:2": bucket(1)}

    decided = admit([row(1, "a:1"), row(2, "a:2"), row(3, rate="r:1"), row(4, rate="r:2")], gates, buckets)

    assert decided.admitted == [(1, 1), (4, None)]


def test_a_row_without_tokens_passes_its_slot_on() -> None:
    gates, buckets = {"a": Gate(1, set())}, {"r": bucket(0)}

    decided = admit([row(1, "a", "r"), row(2, "a")], gates, buckets)

    assert decided.admitted == [(2, 1)]
    assert decided.held == [(1, Hold.RATE, None)]
    assert decided.passed_on == ["a"]


def test_a_row_without_a_slot_takes_no_tokens() -> None:
    buckets = {"r": bucket(1)}

    decided = admit([row(1, "a", "r"), row(2, rate="r")], {"a": Gate(1, {1})}, buckets)

    assert decided.held == [(1, Hold.LIMIT, None)]
    assert decided.admitted == [(2, None)]


def test_a_row_behind_a_busy_key_takes_nothing_and_is_not_held() -> None:
    decided = admit([row(1, "a", is_busy=True)], {"a": Gate(1, set())}, {})

    assert (decided.admitted, decided.held, decided.passed_on) == ([], [], ["a"])


def test_a_row_that_can_never_fit_is_held_with_the_reason_and_blocks_no_row() -> None:
    buckets = {"r": bucket(3, burst=3), "gone": bucket(0, burst=None)}

    decided = admit(
        [row(1, rate="r", weight=5), row(2, rate="gone:7"), row(3, "gone"), row(4, rate="r")],
        {"gone": Gate(None, set())}, {**buckets, "gone:7": buckets["gone"]},
    )  # fmt: skip

    assert decided.held == [
        (1, Hold.RATE, "its weight 5 is above the burst 3 of rate limit 'r'"),
        (2, Hold.RATE, "no rate limit is called 'gone'"),
        (3, Hold.LIMIT, "no concurrency limit is called 'gone'"),
    ]
    assert decided.admitted == [(4, None)]
    assert buckets["r"].wait is None


def test_a_wait_for_tokens_is_bounded_by_what_postgres_can_store() -> None:
    slow = bucket(0, burst=1_000_000_000, per_second=1e-9)

    admit([row(1, rate="r", weight=1_000_000_000)], {}, {"r": slow})

    assert slow.wait == 3_153_600_000
