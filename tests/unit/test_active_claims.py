"""The claims that a worker holds."""

from __future__ import annotations

import asyncio

import pytest

from stepwell._core.instance import Claim
from stepwell._worker.active_claims import COMMITTED, SUBMITTED, ActiveClaim, ActiveClaims
from tests.unit.claims import make_claim


def take(active_claims: ActiveClaims, claim: Claim) -> ActiveClaim:
    """Take a claim that was not given back."""
    assert active_claims.add([claim]) == [claim]
    active = active_claims.get(claim.id)
    assert active is not None
    return active


def test_a_claim_is_active_until_it_is_dropped() -> None:
    active_claims, claim = ActiveClaims(), make_claim()

    active = take(active_claims, claim)

    assert (len(active_claims), active_claims.ids(), active_claims.get(7), active_claims.all()) == (1, {7}, active,
                                                                                                    [active])
    active_claims.drop(claim)
    assert (len(active_claims), active_claims.get(7)) == (0, None)


def test_dropping_an_old_claim_leaves_a_newer_one_of_the_same_instance() -> None:
    active_claims, old, new = ActiveClaims(), make_claim(fence=11), make_claim(fence=12)
    active_claims.add([old, new])

    active_claims.drop(old)

    assert active_claims.ids() == {7}


async def test_a_newer_claim_stops_the_older_step_unless_its_commit_is_pending() -> None:
    active_claims = ActiveClaims()
    running, submitted = take(active_claims, make_claim(id=1, fence=1)), take(active_claims, make_claim(id=2, fence=1))
    submitted.stage = SUBMITTED

    active_claims.add([make_claim(id=1, fence=2), make_claim(id=2, fence=3)])

    assert (running.abandoned, submitted.abandoned, active_claims.ids()) == (True, False, {1, 2})


def test_dropping_an_unknown_claim_does_nothing() -> None:
    active_claims = ActiveClaims()

    active_claims.drop(make_claim())

    assert len(active_claims) == 0


def test_a_late_claim_and_its_release_are_decided_by_the_first() -> None:
    active_claims, late, other = ActiveClaims(), make_claim(), make_claim(id=8)
    anew = make_claim(fence=late.fence + 1)

    given_back = active_claims.give_back({7: late.fence})

    assert (given_back, active_claims.add([late, other]), active_claims.add([anew])) == ([7], [other], [anew])
    assert active_claims.give_back({7: anew.fence}) == []


async def test_abandoning_a_claim_cancels_its_task_with_the_reason() -> None:
    active_claims = ActiveClaims()
    active = take(active_claims, make_claim())
    active.task = asyncio.create_task(asyncio.Event().wait())  # type: ignore[assignment]
    await asyncio.sleep(0)

    abandoned = active_claims.abandon([7, 8], "the lease is lost")

    assert (abandoned, active.abandoned, len(active_claims)) == (1, True, 0)
    with pytest.raises(asyncio.CancelledError, match="the lease is lost"):
        await active.task


async def test_a_claim_with_a_committed_outcome_is_not_abandoned() -> None:
    active_claims = ActiveClaims()
    active = take(active_claims, make_claim())
    active.task = asyncio.create_task(asyncio.sleep(0))  # it gives its connection back
    active.stage = COMMITTED

    active_claims.abandon([7], "the lease is lost")

    await active.task
    assert not active.abandoned


def test_a_claim_without_a_task_can_be_abandoned() -> None:
    active_claims = ActiveClaims()
    active = take(active_claims, make_claim())

    active_claims.abandon([7], "gone")

    assert active.abandoned
