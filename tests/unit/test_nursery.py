"""Slots for children: kept, given to those who are born, and free again for others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stepwell._core.commits import Commit
from stepwell._core.entries import NewInstance
from stepwell._core.records import Claim
from stepwell._core.status import Status
from stepwell._runtime.lanes import Lane, Lanes
from stepwell._runtime.nursery import Nursery
from stepwell._runtime.reservations import Reservations
from tests.unit.claims import make_claim

CHILD = NewInstance(
    machine="order", version=1, step="start", queue="default", priority=0, delay=None, at=None, tenant="",
    concurrency_key=None, state="{}",
)  # fmt: skip


class Ward:
    """A nursery over one lane, and what it did."""

    def __init__(self, slots: int = 10, *, is_laden: bool = False) -> None:
        lanes = Lanes({"default": slots})
        self.lane = lanes["default"]
        self.lane.ready = False
        self.taken: list[Claim] = []
        self.woken = self.left = 0
        self.lease: Any = SimpleNamespace(current=7)
        lease = self.lease
        self.nursery = Nursery(
            Reservations(
                lanes=lanes, lease=lease, take=self._take, on_room=self._wake, on_left=self._leave,
                is_laden=lambda: is_laden,
            ),
            labels=["order@1"],
        )
        self.lanes = lanes

    def _take(self, lane: Lane, born: Any) -> None:
        assert lane is self.lane
        self.taken += born

    def _leave(self) -> None:
        self.left += 1

    def _wake(self) -> None:
        self.woken += 1


def spawn(*children: NewInstance) -> Commit:
    return Commit(
        claim=make_claim(), status=Status.AWAITING_CHILDREN, step="join", version=1, attempt=0, children=children
    )


def changed(**fields: Any) -> NewInstance:
    return NewInstance(**{name: getattr(CHILD, name) for name in CHILD.__struct_fields__} | fields)


def test_those_who_are_born_have_the_slots_that_were_kept_and_the_others_are_free_again() -> None:
    ward, born = Ward(), [make_claim()]

    reserved = ward.nursery.reserve([spawn(CHILD), spawn(CHILD, CHILD)])
    assert reserved is not None
    assert (reserved.slots, reserved.worker_id, ward.lane.free) == (3, 7, 7)
    ward.nursery.settle(reserved, born)

    assert (ward.lane.reserved, ward.lane.unasked, ward.taken) == (0, 1, born)


def test_who_comes_when_the_lease_is_gone_is_left_to_the_reaper_which_is_told() -> None:
    ward = Ward()
    reserved = ward.nursery.reserve([spawn(CHILD)])
    assert reserved is not None
    ward.lease.current = None

    ward.nursery.settle(reserved, [make_claim()])

    assert (ward.taken, ward.left, ward.lane.reserved) == ([], 1, 0)


def test_what_was_told_of_while_slots_were_kept_is_claimed_when_they_are_free_again() -> None:
    ward = Ward(slots=2)
    reserved = ward.nursery.reserve([spawn(CHILD, CHILD)])
    assert reserved is not None
    ward.lane.ready = True
    assert ward.lane.demand(0, 1) == 0

    ward.nursery.settle(reserved, [])

    assert (ward.woken, ward.lane.demand(0, 1)) == (1, 2)


@pytest.mark.parametrize(
    "child",
    [
        changed(key="k", key_scope="live"), changed(concurrency_key="k"), changed(delay=1), changed(at=1),
        changed(version=2), changed(queue="elsewhere"), changed(needs=1),
    ],
    ids=["key", "concurrency key", "delay", "time", "version", "queue", "limits"],
)  # fmt: skip
def test_no_slot_is_kept_for_who_needs_more_than_this_worker_now(child: NewInstance) -> None:
    ward = Ward()

    assert ward.nursery.reserve([spawn(child)]) is None
    assert ward.lane.reserved == 0


def test_no_slot_is_kept_where_too_much_waits_for_its_commit_or_a_claim_is_the_beginning_of_all() -> None:
    laden, claiming = Ward(is_laden=True), Ward()
    claiming.lanes.claims_at_once = True

    assert [ward.nursery.reserve([spawn(CHILD)]) for ward in (laden, claiming)] == [None, None]
