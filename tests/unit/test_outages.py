"""What the log says of outages: a record at the start, one a minute, one at the end; one traceback per error."""

from __future__ import annotations

import asyncio
import logging

import pytest

from stepwell._core.store_errors import Contention, Misfit, Outage
from stepwell._process import outages as outage_log
from stepwell._process.outages import MOST_BEGINNINGS, Outages
from stepwell._process.service import Service
from tests.support.waiting import eventually


class Broken(Service):
    """Raises the same error in every tick."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name)
        self.ticks = 0
        self._backoff.longest = 0.001
        self._error = error

    async def tick(self) -> float | None:
        self.ticks += 1
        raise self._error


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]


@pytest.fixture(autouse=True)
def debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "stepwell")


def test_an_outage_of_many_parties_is_logged_once_and_once_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages()

    for _ in range(3):
        for party in ("claimer", "timers", "heartbeat"):
            outages.failed(party, party, Outage(f"no answer to {party}"))
    for party in ("claimer", "timers", "heartbeat"):
        outages.works(party)
    outages.works("claimer")

    begin, end = told(caplog)
    assert begin.startswith("the database is unavailable (claimer: no answer to claimer); retrying")
    assert end == "the database is available again, after 0.0 s"
    assert len(caplog.records) == 9 + 2


def test_the_end_of_an_outage_waits_for_the_last_party_that_fails(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages()
    outages.failed("claimer", "claimer", Outage("away"))
    outages.failed("timers", "timers", Outage("away"))

    outages.works("timers")
    outages.failed("timers", "timers", Outage("away"))
    outages.works("claimer")

    assert len(told(caplog)) == 1
    outages.works("timers")
    assert len(told(caplog)) == 2


def test_a_lasting_outage_is_logged_again_with_what_fails(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outage_log, "REMIND_AFTER", 0.0)
    outages = Outages()

    outages.failed("timers", "timers", Outage("away"))
    outages.failed("claimer", "claimer", Outage("starting up"))

    _, reminder = warnings(caplog)
    assert reminder == ("the database is unavailable, for 0 s now; failing: claimer, timers; "
                        "last error, of claimer: starting up")  # fmt: skip


def test_a_refusal_of_statements_hides_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages()
    outages.failed("pruner", "pruner", Misfit("UndefinedTableError: no such table"))

    outages.failed("claimer", "claimer", Outage("refused"))
    outages.failed("pruner", "pruner", Outage("refused"))
    outages.works("claimer")
    outages.failed("pruner", "pruner", Misfit("UndefinedTableError: no such table"))

    refuses, away, end = told(caplog)
    assert refuses.startswith("the database refuses statements (pruner: UndefinedTableError: no such table)")
    assert away.startswith("the database is unavailable (claimer: refused)")
    assert end.startswith("the database is available again")


def test_a_lost_race_is_not_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    Outages().failed("slot_releases", "slot_releases", Contention("deadlock"))

    assert told(caplog) == []


def test_frequent_short_outages_are_logged_a_few_times_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages()

    for _ in range(100):
        outages.failed("claimer", "claimer", Outage("statement timeout"))
        outages.works("claimer")

    assert len(warnings(caplog)) == MOST_BEGINNINGS
    assert len(told(caplog)) == 2 * MOST_BEGINNINGS


def test_a_party_that_stops_ends_no_outage_of_others(caplog: pytest.LogCaptureFixture) -> None:
    outages = Outages()
    outages.failed("claimer", "claimer", Outage("away"))
    outages.failed("listener", "listener", Outage("away"))

    outages.left("claimer")

    assert len(told(caplog)) == 1
    outages.works("listener")
    assert len(told(caplog)) == 2


async def test_an_unexpected_error_that_repeats_has_one_traceback(caplog: pytest.LogCaptureFixture) -> None:
    claimer = Broken("claimer", ValueError("a bug"))

    claimer.start()
    await eventually(lambda: claimer.ticks >= 20)
    await claimer.stop()

    [line] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (line.getMessage(), bool(line.exc_info)) == ("claimer: unexpected error; retrying", True)


async def test_an_unexpected_error_elsewhere_in_the_code_has_its_own_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def first() -> None:
        raise ValueError("a bug")

    def second() -> None:
        raise ValueError("a bug")

    outages = Outages()
    for act in (first, second, first, second):
        try:
            act()
        except ValueError as error:
            outages.unexpected("claimer", error)

    assert len([record for record in caplog.records if record.exc_info]) == 2


async def test_a_lasting_unexpected_error_is_counted_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    outages, error = Outages(), ValueError("a bug")
    for _ in range(4):
        outages.unexpected("claimer", error)

    monkeypatch.setattr(outage_log, "REMIND_AFTER", 0.0)
    outages.unexpected("claimer", error)

    traced, counted = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (bool(traced.exc_info), bool(counted.exc_info)) == (True, False)
    assert counted.getMessage() == "claimer: unexpected error, 4 more times: ValueError('a bug'); retrying"


async def test_a_call_cancelled_during_an_outage_ends_its_part_of_the_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def act() -> None:
        raise Outage("away")

    outages = Outages()
    trying = asyncio.create_task(outages.outlast("incremental_ask", act))
    await eventually(lambda: told(caplog))
    trying.cancel()
    await asyncio.wait([trying])
    outages.failed("claimer", "claimer", Outage("away"))

    assert len(warnings(caplog)) == 2
