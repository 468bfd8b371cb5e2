"""Natural groups of single calls: at once when idle, together when busy, and each caller has an answer of its own."""

from __future__ import annotations

import asyncio

import pytest

from stepwell._core.faults import Outage, Refusal
from stepwell._runtime.gatherer import LARGEST_TEXT, Gatherer
from tests.support.waiting import eventually


class Desk:
    """Answers with the double of each number, as often as it may; keeps what was sent."""

    def __init__(self) -> None:
        self.sent: list[list[int]] = []
        self.permits = asyncio.Semaphore(0)
        self.fault: Exception | None = None
        self.bad: int | None = None

    def answer(self, times: int = 100) -> None:
        for _ in range(times):
            self.permits.release()

    async def send(self, numbers: list[int]) -> list[int]:
        self.sent.append(numbers)
        await self.permits.acquire()
        await asyncio.sleep(0)  # as an answer comes from another process
        if self.fault is not None:
            raise self.fault
        if self.bad in numbers:
            raise Refusal(f"{self.bad} is bad")
        return [2 * number for number in numbers]


async def submitted(gatherer: Gatherer[int, int], numbers: range) -> list[asyncio.Task[int]]:
    """Callers that wait; the first of them was sent at once."""
    tasks = [asyncio.create_task(gatherer.submit(number)) for number in numbers]
    await asyncio.sleep(0)
    return tasks


async def test_who_comes_alone_is_sent_at_once() -> None:
    desk = Desk()
    desk.answer()
    gatherer = Gatherer(desk.send)

    answers = [await gatherer.submit(number) for number in (1, 2, 3)]

    assert answers == [2, 4, 6]
    assert desk.sent == [[1], [2], [3]]


async def test_who_comes_while_one_is_under_way_goes_together_in_the_next() -> None:
    desk = Desk()
    tasks = await submitted(Gatherer(desk.send), range(5))

    desk.answer()

    assert await asyncio.gather(*tasks) == [0, 2, 4, 6, 8]
    assert desk.sent == [[0], [1, 2, 3, 4]]


async def test_who_waits_a_turn_goes_together_with_all_who_come_at_that_moment() -> None:
    desk = Desk()
    desk.answer()
    gatherer = Gatherer(desk.send, waits_a_turn=True)

    together = await asyncio.gather(*(gatherer.submit(number) for number in range(5)))
    alone = await gatherer.submit(7)

    assert (together, alone) == ([0, 2, 4, 6, 8], 14)
    assert desk.sent == [[0, 1, 2, 3, 4], [7]]


async def test_those_who_come_again_and_again_go_on_together() -> None:
    desk = Desk()
    desk.answer()
    gatherer = Gatherer(desk.send)

    async def come_again(number: int) -> None:
        for _ in range(10):
            await gatherer.submit(number)

    await asyncio.gather(*(come_again(number) for number in range(10)))

    assert len(desk.sent) == 11, "one was alone at first; from then on all ten"


async def test_a_group_is_no_larger_than_a_statement_may_be() -> None:
    desk = Desk()
    tasks = await submitted(Gatherer(desk.send, lambda number: LARGEST_TEXT // number if number else 0), range(5))

    desk.answer()

    assert await asyncio.gather(*tasks) == [0, 2, 4, 6, 8]
    assert desk.sent == [[0], [1], [2, 3], [4]], "halves, thirds and quarters of what fits"


async def test_what_has_no_room_in_a_group_goes_beside_it() -> None:
    desk = Desk()
    gatherer = Gatherer(desk.send, waits_a_turn=True, largest=2, at_once=2)
    tasks = await submitted(gatherer, range(5))

    await eventually(lambda: len(desk.sent) == 2)
    assert desk.sent == [[0, 1], [2, 3]]
    desk.answer()

    assert await asyncio.gather(*tasks) == [0, 2, 4, 6, 8]
    assert desk.sent == [[0, 1], [2, 3], [4]]


async def test_who_comes_while_a_group_with_room_is_under_way_waits_for_its_end() -> None:
    desk = Desk()
    gatherer = Gatherer(desk.send, waits_a_turn=True, largest=2, at_once=2)
    first = await submitted(gatherer, range(1))
    await eventually(lambda: desk.sent)
    later = await submitted(gatherer, range(1, 3))
    await asyncio.sleep(0)
    assert desk.sent == [[0]]

    desk.answer()

    assert await asyncio.gather(*first, *later) == [0, 2, 4]
    assert desk.sent == [[0], [1, 2]]


async def test_a_refused_item_fails_none_of_its_neighbours() -> None:
    desk = Desk()
    desk.bad = 2
    tasks = await submitted(Gatherer(desk.send), range(4))

    desk.answer()
    answers = await asyncio.gather(*tasks, return_exceptions=True)

    assert [answer for answer in answers if isinstance(answer, int)] == [0, 2, 6]
    assert isinstance(answers[2], Refusal)


async def test_an_outage_is_told_to_every_caller_as_an_error_of_its_own() -> None:
    desk = Desk()
    gatherer = Gatherer(desk.send)
    tasks = await submitted(gatherer, range(3))

    desk.fault = Outage("away")
    desk.answer()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    desk.fault = None

    assert [str(answer) for answer in answers] == ["away"] * 3
    assert len({id(answer) for answer in answers}) == 3
    assert await gatherer.submit(7) == 14


async def test_a_caller_that_is_cancelled_in_time_takes_its_item_with_it() -> None:
    desk = Desk()
    tasks = await submitted(Gatherer(desk.send), range(4))

    tasks[2].cancel()
    await asyncio.sleep(0)
    desk.answer()
    answers = await asyncio.gather(*tasks, return_exceptions=True)

    assert desk.sent == [[0], [1, 3]]
    assert isinstance(answers[2], asyncio.CancelledError)


@pytest.mark.parametrize("cancelled", [0, 1], ids=["who is sent alone", "one of the group"])
async def test_a_caller_that_is_cancelled_too_late_leaves_the_others_their_answers(cancelled: int) -> None:
    desk = Desk()
    gatherer = Gatherer(desk.send)
    tasks = await submitted(gatherer, range(3))
    if cancelled:
        desk.answer(1)
        await eventually(lambda: desk.sent == [[0], [1, 2]])

    tasks[cancelled].cancel()
    await asyncio.sleep(0)
    desk.answer()
    answers = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(answers[cancelled], asyncio.CancelledError)
    assert [answer for answer in answers if isinstance(answer, int)] == [2 * n for n in range(3) if n != cancelled]
    assert await gatherer.submit(7) == 14
