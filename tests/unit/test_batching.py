"""Batches of single calls: at once when idle, together when busy, and each caller has its own result."""

from __future__ import annotations

import asyncio

import pytest

from stepwell._client.batching import LARGEST_TEXT, Batcher
from stepwell._core.store_errors import Outage, Refusal
from tests.support.waiting import eventually


class Sender:
    """Returns the double of each number, as often as it may; keeps what was sent."""

    def __init__(self) -> None:
        self.sent: list[list[int]] = []
        self.permits = asyncio.Semaphore(0)
        self.fault: Exception | None = None
        self.bad: int | None = None

    def permit(self, times: int = 100) -> None:
        for _ in range(times):
            self.permits.release()

    async def send(self, numbers: list[int]) -> list[int]:
        self.sent.append(numbers)
        await self.permits.acquire()
        await asyncio.sleep(0)  # as a response comes from another process
        if self.fault is not None:
            raise self.fault
        if self.bad in numbers:
            raise Refusal(f"{self.bad} is bad")
        return [2 * number for number in numbers]


async def submitted(batcher: Batcher[int, int], numbers: range) -> list[asyncio.Task[int]]:
    """Callers that wait; the first of them was sent at once."""
    tasks = [asyncio.create_task(batcher.submit(number)) for number in numbers]
    await asyncio.sleep(0)
    return tasks


async def test_a_single_call_is_sent_at_once() -> None:
    sender = Sender()
    sender.permit()
    batcher = Batcher(sender.send)

    answers = [await batcher.submit(number) for number in (1, 2, 3)]

    assert answers == [2, 4, 6]
    assert sender.sent == [[1], [2], [3]]


async def test_calls_during_a_batch_form_the_next_batch() -> None:
    sender = Sender()
    tasks = await submitted(Batcher(sender.send), range(5))

    sender.permit()

    assert await asyncio.gather(*tasks) == [0, 2, 4, 6, 8]
    assert sender.sent == [[0], [1, 2, 3, 4]]


async def test_calls_of_one_loop_turn_form_one_batch() -> None:
    sender = Sender()
    sender.permit()
    batcher = Batcher(sender.send, waits_a_turn=True)

    together = await asyncio.gather(*(batcher.submit(number) for number in range(5)))
    alone = await batcher.submit(7)

    assert (together, alone) == ([0, 2, 4, 6, 8], 14)
    assert sender.sent == [[0, 1, 2, 3, 4], [7]]


async def test_repeated_calls_stay_in_one_batch() -> None:
    sender = Sender()
    sender.permit()
    batcher = Batcher(sender.send)

    async def come_again(number: int) -> None:
        for _ in range(10):
            await batcher.submit(number)

    await asyncio.gather(*(come_again(number) for number in range(10)))

    assert len(sender.sent) == 11, "one was alone at first; from then on all ten"


async def test_a_batch_is_no_larger_than_a_statement_may_be() -> None:
    sender = Sender()
    tasks = await submitted(Batcher(sender.send, lambda number: LARGEST_TEXT // number if number else 0), range(5))

    sender.permit()

    assert await asyncio.gather(*tasks) == [0, 2, 4, 6, 8]
    assert sender.sent == [[0], [1], [2, 3], [4]], "halves, thirds and quarters of what fits"


async def test_calls_that_do_not_fit_form_a_concurrent_batch() -> None:
    sender = Sender()
    batcher = Batcher(sender.send, waits_a_turn=True, largest=2, at_once=2)
    tasks = await submitted(batcher, range(5))

    await eventually(lambda: len(sender.sent) == 2)
    assert sender.sent == [[0, 1], [2, 3]]
    sender.permit()

    assert await asyncio.gather(*tasks) == [0, 2, 4, 6, 8]
    assert sender.sent == [[0, 1], [2, 3], [4]]


async def test_a_call_during_a_batch_with_room_waits_for_its_end() -> None:
    sender = Sender()
    batcher = Batcher(sender.send, waits_a_turn=True, largest=2, at_once=2)
    first = await submitted(batcher, range(1))
    await eventually(lambda: sender.sent)
    later = await submitted(batcher, range(1, 3))
    await asyncio.sleep(0)
    assert sender.sent == [[0]]

    sender.permit()

    assert await asyncio.gather(*first, *later) == [0, 2, 4]
    assert sender.sent == [[0], [1, 2]]


async def test_a_refused_item_fails_none_of_its_neighbours() -> None:
    sender = Sender()
    sender.bad = 2
    tasks = await submitted(Batcher(sender.send), range(4))

    sender.permit()
    answers = await asyncio.gather(*tasks, return_exceptions=True)

    assert [answer for answer in answers if isinstance(answer, int)] == [0, 2, 6]
    assert isinstance(answers[2], Refusal)


async def test_an_outage_raises_a_separate_error_for_every_caller() -> None:
    sender = Sender()
    batcher = Batcher(sender.send)
    tasks = await submitted(batcher, range(3))

    sender.fault = Outage("away")
    sender.permit()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    sender.fault = None

    assert [str(answer) for answer in answers] == ["away"] * 3
    assert len({id(answer) for answer in answers}) == 3
    assert await batcher.submit(7) == 14


async def test_a_caller_cancelled_before_sending_withdraws_its_item() -> None:
    sender = Sender()
    tasks = await submitted(Batcher(sender.send), range(4))

    tasks[2].cancel()
    await asyncio.sleep(0)
    sender.permit()
    answers = await asyncio.gather(*tasks, return_exceptions=True)

    assert sender.sent == [[0], [1, 3]]
    assert isinstance(answers[2], asyncio.CancelledError)


@pytest.mark.parametrize("cancelled", [0, 1], ids=["sent alone", "one of a batch"])
async def test_a_caller_cancelled_after_sending_does_not_affect_the_others(cancelled: int) -> None:
    sender = Sender()
    batcher = Batcher(sender.send)
    tasks = await submitted(batcher, range(3))
    if cancelled:
        sender.permit(1)
        await eventually(lambda: sender.sent == [[0], [1, 2]])

    tasks[cancelled].cancel()
    await asyncio.sleep(0)
    sender.permit()
    answers = await asyncio.gather(*tasks, return_exceptions=True)

    assert isinstance(answers[cancelled], asyncio.CancelledError)
    assert [answer for answer in answers if isinstance(answer, int)] == [2 * n for n in range(3) if n != cancelled]
    assert await batcher.submit(7) == 14
