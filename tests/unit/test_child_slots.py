"""Slots for children: reserved, given to those inserted claimed, and free again for others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from stepwell._core.commit import Commit, Park
from stepwell._core.instance import Claim
from stepwell._core.start_request import NewInstance
from stepwell._core.status import Status
from stepwell._store.connection import notifications
from stepwell._worker.commit_queue import MOST_UNCOMMITTED
from stepwell._worker.committing.child_slots import ChildSlots
from stepwell._worker.queue_slots import AllQueueSlots, QueueSlots
from stepwell._worker.wakeups import Wakeups
from tests.unit.claims import make_claim

CHILD = NewInstance(
    machine="order", version=1, step="start", queue="default", priority=0, due=None, tenant="",
    concurrency_key=None, state="{}",
)  # fmt: skip


class OneQueue:
    """The child slots of one queue, and what they did."""

    def __init__(self, slots: int = 10, *, is_over_budget: bool = False) -> None:
        all_queue_slots = AllQueueSlots({"default": slots})
        self.queue_slots = all_queue_slots["default"]
        self.queue_slots.backlog.ready = False
        self.taken: list[Claim] = []
        self.woken = self.left = 0
        self.lease: Any = SimpleNamespace(current=7)
        lease = self.lease
        wakeups = Wakeups()
        wakeups.children_claimed, wakeups.work_available = self._take, self._wake
        commit_queue: Any = SimpleNamespace(waiting=MOST_UNCOMMITTED if is_over_budget else 0)
        notifier: Any = SimpleNamespace(publish=self._leave)
        self.child_slots = ChildSlots(
            all_queue_slots=all_queue_slots, lease=lease, labels=["order@1"], commit_queue=commit_queue,
            notifier=notifier, wakeups=wakeups,
        )  # fmt: skip
        self.all_queue_slots = all_queue_slots

    def _take(self, queue_slots: QueueSlots, inserted_claimed: Any) -> None:
        assert queue_slots is self.queue_slots
        self.taken += inserted_claimed

    def _leave(self, channel: str) -> None:
        assert channel == notifications.IDLE
        self.left += 1

    def _wake(self) -> None:
        self.woken += 1


def spawn(*children: NewInstance) -> Commit:
    return Commit(
        claim=make_claim(), status=Status.AWAITING_CHILDREN, step="join", version=1, attempt=0,
        park=Park(children=children),
    )  # fmt: skip


def changed(**fields: Any) -> NewInstance:
    return NewInstance(**{name: getattr(CHILD, name) for name in CHILD.__struct_fields__} | fields)


def test_children_inserted_claimed_use_reserved_slots_and_the_rest_are_free() -> None:
    one_queue, inserted_claimed = OneQueue(), [make_claim()]

    reserved = one_queue.child_slots.reserve([spawn(CHILD), spawn(CHILD, CHILD)])
    assert reserved is not None
    assert (reserved.slots, reserved.worker_id, one_queue.queue_slots.free) == (3, 7, 7)
    one_queue.child_slots.settle(reserved, inserted_claimed)

    assert (one_queue.queue_slots.reserved, one_queue.queue_slots.backlog.reserved_since_claim) == (0, 1)
    assert one_queue.taken == inserted_claimed


def test_claims_that_arrive_after_a_lost_lease_are_left_to_the_reaper() -> None:
    one_queue = OneQueue()
    reserved = one_queue.child_slots.reserve([spawn(CHILD)])
    assert reserved is not None
    one_queue.lease.current = None

    one_queue.child_slots.settle(reserved, [make_claim()])

    assert (one_queue.taken, one_queue.left, one_queue.queue_slots.reserved) == ([], 1, 0)


def test_work_notified_during_a_reservation_is_claimed_after_it() -> None:
    one_queue = OneQueue(slots=2)
    reserved = one_queue.child_slots.reserve([spawn(CHILD, CHILD)])
    assert reserved is not None
    one_queue.queue_slots.backlog.ready = True
    assert one_queue.queue_slots.demand(0, 1) == 0

    one_queue.child_slots.settle(reserved, [])

    assert (one_queue.woken, one_queue.queue_slots.demand(0, 1)) == (1, 2)


@pytest.mark.parametrize(
    "child",
    [
        changed(key="k", key_scope="live"), changed(concurrency_key="k"), changed(due=timedelta(1)),
        changed(due=datetime(2040, 1, 1, tzinfo=UTC)),
        changed(version=2), changed(queue="elsewhere"), changed(needs=1),
    ],
    ids=["key", "concurrency key", "delay", "time", "version", "queue", "limits"],
)  # fmt: skip
def test_no_slot_is_reserved_for_a_child_that_cannot_start_here_now(child: NewInstance) -> None:
    one_queue = OneQueue()

    assert one_queue.child_slots.reserve([spawn(child)]) is None
    assert one_queue.queue_slots.reserved == 0


def test_no_slot_is_reserved_over_budget_or_if_a_claim_marks_started() -> None:
    over_budget, claiming = OneQueue(is_over_budget=True), OneQueue()
    claiming.all_queue_slots.claims_started = True

    assert [one_queue.child_slots.reserve([spawn(CHILD)]) for one_queue in (over_budget, claiming)] == [None, None]
