"""The one background loop: start, tick, rest, back off, stop."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable

import pytest

from stepwell._core.store_errors import Contention, Outage
from stepwell._process import service as loops
from stepwell._process.service import Service, all_of, calm
from tests.support.waiting import eventually


class Ticker(Service):
    """Counts its ticks, and does in each what the test passed."""

    def __init__(self, work: Callable[[int], Awaitable[float | None]] | None = None, rest: float | None = None) -> None:
        super().__init__("ticker")
        self.ticks = 0
        self._work = work
        self._rest_for = rest

    async def tick(self) -> float | None:
        self.ticks += 1
        await asyncio.sleep(0)  # as a statement would
        return self._rest_for if self._work is None else await self._work(self.ticks)


async def test_a_service_ticks_at_once_and_then_rests_until_woken() -> None:
    service = Ticker()

    service.start()
    await eventually(lambda: service.ticks == 1)
    service.wake()
    await eventually(lambda: service.ticks == 2)
    await service.stop()

    assert service.ticks == 2


async def test_a_service_that_starts_waiting_ticks_when_it_is_woken() -> None:
    service = Ticker()

    service.start(after=None)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert service.ticks == 0
    service.wake()
    await eventually(lambda: service.ticks == 1)
    await service.stop()


async def test_a_service_that_starts_with_a_delay_ticks_after_it() -> None:
    service = Ticker()

    service.start(after=0.001)
    assert service.ticks == 0
    await eventually(lambda: service.ticks == 1)
    await service.stop()


@pytest.mark.parametrize(("every", "most"), [(0.02, 0.02), (60.0, loops.CALM)])
def test_an_initial_delay_is_within_a_second_and_within_the_period(every: float, most: float) -> None:
    assert all(most / 2 <= calm(every) <= most for _ in range(50))


async def test_a_service_ticks_again_after_its_rest() -> None:
    service = Ticker(rest=0.001)

    service.start()
    await eventually(lambda: service.ticks >= 5)
    await service.stop()


async def test_a_wake_during_a_tick_is_not_lost() -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def work(tick: int) -> None:
        if tick == 1:
            entered.set()
            await leave.wait()

    service = Ticker(work)
    service.start()
    await entered.wait()
    service.wake()
    leave.set()

    await eventually(lambda: service.ticks == 2)
    await service.stop()


async def test_a_wake_before_the_start_costs_nothing() -> None:
    service = Ticker()

    service.wake()
    service.start()

    await eventually(lambda: service.ticks >= 1)
    await service.stop()


async def test_hasten_shortens_a_rest_but_never_lengthens_it() -> None:
    service = Ticker(rest=3_600.0)
    service.start()
    await eventually(lambda: service.ticks == 1)

    service.wake_within(0.001)
    await eventually(lambda: service.ticks == 2)
    service.wake_within(0.001)
    service.wake_within(1_000.0)

    await eventually(lambda: service.ticks == 3)
    await service.stop()


async def test_a_due_time_set_during_a_tick_is_not_lost() -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    async def work(tick: int) -> float:
        if tick == 1:
            entered.set()
            await leave.wait()
        return 3_600.0

    service = Ticker(work)
    service.start()
    await entered.wait()
    service.wake_within(0.001)
    leave.set()

    await eventually(lambda: service.ticks == 2)
    await service.stop()


@pytest.mark.parametrize("error", [ValueError("bug"), Outage("away"), Contention("deadlock"), KeyError()])
async def test_errors_of_a_tick_never_end_the_loop(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "LONGEST_BACKOFF", 0.01)

    async def work(tick: int) -> None:
        if tick <= 3:
            raise error

    service = Ticker(work)
    service.start()

    await eventually(lambda: service.ticks == 4)
    await service.stop()


async def test_an_unexpected_error_logs_a_traceback_and_an_outage_logs_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(tick: int) -> None:
        if tick == 1:
            raise ValueError("a bug")
        if tick == 2:
            raise Outage("gone fishing")

    service = Ticker(work)
    with caplog.at_level(logging.WARNING, "stepwell"):
        service.start()
        await eventually(lambda: service.ticks == 3)
        await service.stop()

    unexpected, outage = caplog.records
    assert unexpected.exc_info is not None
    assert "the database is unavailable (ticker: gone fishing)" in outage.getMessage()
    assert outage.exc_info is None


async def test_a_wake_does_not_shorten_a_backoff() -> None:
    async def work(_: int) -> None:
        service.wake()
        raise Outage("away")

    service = Ticker(work)
    service.start()
    for _ in range(50):
        await asyncio.sleep(0)

    assert service.ticks == 1
    await service.stop()


async def test_stop_waits_for_the_running_tick() -> None:
    entered, leave, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def work(_: int) -> None:
        entered.set()
        await leave.wait()
        ended.set()

    service = Ticker(work)
    service.start()
    await entered.wait()
    stopping = asyncio.create_task(service.stop())
    await asyncio.sleep(0)
    leave.set()
    await stopping

    assert ended.is_set()


async def test_a_tick_that_does_not_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "STOP_GRACE", 0.01)
    entered = asyncio.Event()

    async def work(_: int) -> None:
        entered.set()
        await asyncio.Event().wait()

    service = Ticker(work)
    service.start()
    await entered.wait()
    await service.stop()

    assert service.ticks == 1


async def test_a_second_start_or_stop_does_nothing() -> None:
    service = Ticker()

    await service.stop()
    service.start()
    service.start()
    await eventually(lambda: service.ticks == 1)
    await service.stop()
    await service.stop()

    assert service.ticks == 1


async def test_a_service_survives_many_starts_and_stops_at_any_moment() -> None:
    service = Ticker(rest=0.0)
    before = len(asyncio.all_tasks())

    for turns in range(200):
        service.start()
        for _ in range(turns % 5):
            await asyncio.sleep(0)
        service.wake()
        stops = [asyncio.create_task(service.stop()) for _ in range(turns % 3 + 1)]
        await asyncio.gather(*stops)

    ticks = service.ticks
    gc.collect()
    await asyncio.sleep(0)
    assert service.ticks == ticks
    assert len(asyncio.all_tasks()) == before


async def test_a_service_can_be_started_again_and_ticks() -> None:
    service = Ticker()
    service.start()
    await eventually(lambda: service.ticks == 1)
    await service.stop()

    service.start()

    await eventually(lambda: service.ticks == 2)
    await service.stop()


async def test_each_part_of_a_tick_runs_and_the_first_outage_is_raised() -> None:
    done: list[str] = []

    def part(name: str, error: Exception | None = None) -> Callable[[], Awaitable[None]]:
        async def act() -> None:
            done.append(name)
            if error is not None:
                raise error

        return act

    with pytest.raises(Outage, match="first"):
        await all_of(
            part("a", Contention("locked")), part("b", Outage("first")), part("c", Outage("second")), part("d")
        )
    with pytest.raises(Contention, match="locked"):
        await all_of(part("e", Contention("locked")), part("f"))

    assert done == ["a", "b", "c", "d", "e", "f"]
