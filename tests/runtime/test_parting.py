"""The last commit of a claim: nobody's task waits for its answer, and nothing is lost or done twice by that."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

from stepwell._core.records import Claim
from stepwell._runtime.hands import Hand, Hands
from stepwell._runtime.parting import Parting


def parting() -> tuple[Hands, Hand, Parting, list[BaseException]]:
    hands, refused = Hands(), list[Any]()
    hand = hands.add(Claim(1, 7, 3, "Order", 1, "ship", 0, 0, "", None, None, "default", datetime.now(UTC)))
    assert hand is not None
    hand.is_parting = hand.submitted = True
    return hands, hand, Parting(hand, hands, refused.append), refused


async def test_a_verdict_lets_the_claim_go_and_tells_who_waits_for_it() -> None:
    hands, hand, answer, refused = parting()
    waits = hand.under_way
    assert waits is not None

    answer.set_result()

    assert (waits.done(), hand.under_way, len(hands), answer.done(), refused) == (True, None, 0, True, [])


async def test_a_refusal_is_brought_back_once_and_is_an_answer() -> None:
    hands, hand, answer, refused = parting()
    waits, error = hand.under_way, RuntimeError("refused")
    assert waits is not None

    answer.set_exception(error)

    assert (waits.done(), answer.done(), refused, len(hands)) == (True, True, [error], 1)


async def test_who_is_abandoned_is_waited_for_by_nobody() -> None:
    _, hand, answer, _ = parting()
    waits = hand.under_way
    assert waits is not None

    hand.abandon("the lease is lost")

    assert (waits.done(), hand.under_way, answer.cancelled()) == (True, None, True)


async def test_the_parting_of_an_older_claim_leaves_a_newer_one() -> None:
    hands, _, answer, _ = parting()
    newer = hands.add(Claim(1, 7, 5, "Order", 1, "ship", 0, 0, "", None, None, "default", datetime.now(UTC)))

    answer.set_result()

    assert hands.get(1) is newer


async def test_a_task_that_runs_is_what_to_wait_for() -> None:
    _, hand, answer, _ = parting()
    gate = asyncio.Event()
    hand.task = asyncio.create_task(_wait(gate))

    assert hand.under_way is hand.task

    gate.set()
    await hand.task
    assert hand.under_way is not hand.task
    answer.set_result()


async def _wait(gate: asyncio.Event) -> None:
    await gate.wait()
