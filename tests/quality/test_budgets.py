"""The seconds of each folder of tests, and what is marked."""

from __future__ import annotations

from typing import cast

import pytest

from tests.support.budgets import EACH, TOP, Budgets, folder_of


def report(nodeid: str, when: str, seconds: float) -> pytest.TestReport:
    return pytest.TestReport(nodeid, ("", 0, ""), {}, "passed", None, cast("object", when), duration=seconds)  # type: ignore[arg-type]


@pytest.mark.parametrize(("nodeid", "folder"), [
    ("tests/unit/test_codec.py::test_it", "unit"),
    ("tests/engine/limits/test_slots.py::test_it[a/b]", "engine"),
    ("tests/crash/test_fence.py::test_it", "crash"),
    ("tests/crash/stops/test_stops.py::test_it", "crash/stops"),
    ("tests/features/limits/deep/test_slots.py::test_it", "features/limits"),
    ("tests/test_growth.py::test_it", TOP),
])  # fmt: skip
def test_time_counts_for_the_folder_of_the_test(nodeid: str, folder: str) -> None:
    assert folder_of(nodeid) == folder


def test_folder_beyond_its_budget_is_marked() -> None:
    budgets = Budgets()
    for when, seconds in (("setup", 1.0), ("call", EACH), ("teardown", 0.5)):
        budgets.pytest_runtest_logreport(report("tests/slow/test_a.py::test_a", when, seconds))
        budgets.pytest_runtest_logreport(report("tests/quick/test_a.py::test_a", when, 0.1))

    slow, quick = budgets.lines()

    assert slow.split() == ["slow", "1", "tests", "101.5", "s", "of", "100", "BEYOND", "ITS", "BUDGET"]
    assert quick.split() == ["quick", "1", "tests", "0.3", "s", "of", "100"]
