"""The slots of a worker in any order of events; STEPWELL_MODEL_EXAMPLES=5000 tries more of them."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from stepwell._core.instance import Claim
from stepwell._worker.queue_slots import QueueSlots
from stepwell._worker.running.ready_queue import ReadyQueue
from stepwell._worker.running.withdrawals import Withdrawals
from tests.unit.ready_queue_model import SlotModel


def run(kind: type[ReadyQueue | Withdrawals] = ReadyQueue) -> None:
    machine: Any = type("Model", (SlotModel,), {"kind" if issubclass(kind, ReadyQueue) else "taking_back": kind})
    examples = int(os.environ.get("STEPWELL_MODEL_EXAMPLES", "50"))
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=80, deadline=None, database=None, derandomize=examples == 50,
            phases=[Phase.generate], suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
        ),
    )  # fmt: skip


def test_no_order_of_events_leaves_a_claim_beside_a_free_slot() -> None:
    run()


class ForgetsAfterAStaleCommit(ReadyQueue):
    """An earlier bug: the slot of a step that stepped aside is free, and nothing starts in it."""

    def _end_away(self, claim: Claim) -> None:
        self._all_queue_slots[claim.queue].away -= 1


class ForgetsAfterAPause(Withdrawals):
    """A queue is resumed, and its claims from before stay in the buffer."""

    def note_paused(self, paused: Collection[str]) -> tuple[list[QueueSlots], list[Claim]]:
        changed = self._all_queue_slots.note_paused(paused)
        return changed, [claim for queue_slots in self._all_queue_slots if queue_slots.is_paused
                         for claim in self.take_back(queue_slots)]


class ForgetsAfterABeginning(ReadyQueue):
    """A mark-started statement fails, and the claims in the buffer stay there."""

    def end_beginning(self, queue_slots: QueueSlots) -> None:
        queue_slots.is_beginning = False


class ReturnsWhatIsLost(Withdrawals):
    """A claim is lost, and given back all the same."""

    def drop_lost(self) -> None:
        pass

    def _holds(self, claim: Claim) -> bool:
        return True


@pytest.mark.parametrize(
    "kind", [ForgetsAfterAStaleCommit, ForgetsAfterAPause, ForgetsAfterABeginning, ReturnsWhatIsLost]
)
def test_the_model_finds_a_fault_in_the_slots(kind: type[ReadyQueue | Withdrawals]) -> None:
    with pytest.raises(AssertionError):
        run(kind)
