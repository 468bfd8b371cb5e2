"""A process may stop between any two statements of any transaction: nothing is stuck, lost, or done twice.

Here: each has a scenario. `make stops` tries all gaps, and STEPWELL_STOPS_SEED=1 one gap of some transactions.
"""

from __future__ import annotations

import os

import pytest

from tests.crash.stops.known import transactions
from tests.crash.stops.run import MIGRATES, PLAYS, Explored, explore_all, one_each

SEED = int(os.environ.get("STEPWELL_STOPS_SEED", "1"))
AT_ONCE = 6
STABLE = ("families", "narrow", "inbox", "reaped", "forgotten", "cancel", "transactional")
AUTHORS = ("step_transaction/mark", "step_transaction/take_over")


def test_every_transaction_has_a_scenario() -> None:
    covered = {name for named in PLAYS for name in named.of} | {MIGRATES}

    without = sorted(transactions().keys() - covered)

    assert without == [], "add a scenario for each of them to tests/crash/stops/worker_plays.py or client_plays.py"
    assert covered <= transactions().keys(), "the scenarios name transactions that there are no more"


@pytest.mark.skipif("STEPWELL_STOPS_SEED" not in os.environ, reason="by make stops, on a machine that is not loaded")
async def test_a_stop_in_a_transaction_leaves_nothing_stuck_lost_or_doubled() -> None:
    plays = [named for named in PLAYS if named.name in STABLE]

    explored: list[Explored] = await explore_all(
        plays, how=("halt",), choose=one_each(SEED), at_once=AT_ONCE, tell=lambda _: None
    )

    assert [str(one) for one in explored if not one.ok] == []


async def test_a_stop_in_an_authors_code_leaves_nothing_stuck_lost_or_doubled() -> None:
    plays = [named for named in PLAYS if named.name == "transactional"]

    [explored] = await explore_all(
        plays, how=("halt",), choose=lambda gaps: [gap for gap in gaps if (gap.after, gap.before) == AUTHORS],
        at_once=1, tell=lambda _: None,
    )  # fmt: skip

    assert explored.ok, str(explored)
    assert [stop.is_reached for stop in explored.report.stops] == [True]
