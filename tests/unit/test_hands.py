"""What is in a worker's hands."""

from __future__ import annotations

import asyncio

import pytest

from stepwell._core.records import Claim
from stepwell._runtime.hands import Hand, Hands
from tests.unit.claims import make_claim


def take(hands: Hands, claim: Claim) -> Hand:
    """Take a claim that was not given back."""
    assert hands.add([claim]) == [claim]
    hand = hands.get(claim.id)
    assert hand is not None
    return hand


def test_a_claim_is_in_hand_until_it_is_dropped() -> None:
    hands, claim = Hands(), make_claim()

    hand = take(hands, claim)

    assert (len(hands), hands.ids(), hands.get(7), hands.all()) == (1, {7}, hand, [hand])
    hands.drop(claim)
    assert (len(hands), hands.get(7)) == (0, None)


def test_dropping_an_old_claim_leaves_a_newer_one_of_the_same_instance() -> None:
    hands, old, new = Hands(), make_claim(fence=11), make_claim(fence=12)
    hands.add([old, new])

    hands.drop(old)

    assert hands.ids() == {7}


async def test_a_newer_claim_stops_the_step_of_an_older_one_unless_its_outcome_is_on_its_way() -> None:
    hands = Hands()
    running, submitted = take(hands, make_claim(id=1, fence=1)), take(hands, make_claim(id=2, fence=1))
    submitted.submitted = True

    hands.add([make_claim(id=1, fence=2), make_claim(id=2, fence=3)])

    assert (running.abandoned, submitted.abandoned, hands.ids()) == (True, False, {1, 2})


def test_dropping_what_is_not_in_hand_does_nothing() -> None:
    hands = Hands()

    hands.drop(make_claim())

    assert len(hands) == 0


def test_of_a_late_answer_and_the_return_of_its_claim_the_first_wins() -> None:
    hands, late, anew, other = Hands(), make_claim(), make_claim(fence=make_claim().fence + 1), make_claim(id=8)

    given_back = hands.give_back({7: late.fence})

    assert (given_back, hands.add([late, other]), hands.add([anew])) == ([7], [other], [anew])
    assert hands.give_back({7: anew.fence}) == []


async def test_abandoning_cancels_the_task_and_tells_it_why() -> None:
    hands = Hands()
    hand = take(hands, make_claim())
    hand.task = asyncio.create_task(asyncio.Event().wait())  # type: ignore[assignment]
    await asyncio.sleep(0)

    abandoned = hands.abandon([7, 8], "the lease is lost")

    assert (abandoned, hand.abandoned, len(hands)) == (1, True, 0)
    with pytest.raises(asyncio.CancelledError, match="the lease is lost"):
        await hand.task


def test_a_claim_without_a_task_can_be_abandoned() -> None:
    hands = Hands()
    hand = take(hands, make_claim())

    hands.abandon([7], "gone")

    assert hand.abandoned
