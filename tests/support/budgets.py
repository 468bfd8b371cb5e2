"""How long the tests of each folder take, beside a budget: printed at the end of every run.

A budget is the time of the folder's tests, summed over all test processes. `make test ARGS=tests/unit` runs four at a
time: 100 seconds of tests are some 30 seconds on the clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest

DIVIDED = {"crash", "features", "quality", "surfaces"}  # each of their folders has a budget of its own
EACH = 100.0
BUDGETS: dict[str, float] = {}  # seconds of a folder that needs more than EACH, with the reason beside it
TOP = "tests/*.py"


def folder_of(nodeid: str) -> str:
    """The folder that the time of a test counts for: tests/unit/test_codec.py::test_x -> unit."""
    parts = nodeid.partition("::")[0].removeprefix("tests/").split("/")[:-1]
    depth = 2 if parts and parts[0] in DIVIDED else 1
    return "/".join(parts[:depth]) or TOP


class Budgets:
    """A pytest plugin of the process that reports, which with xdist is not one that runs tests."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._tests: defaultdict[str, int] = defaultdict(int)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        folder = folder_of(report.nodeid)
        self._seconds[folder] += report.duration  # of the set-up, the test and the tear-down, one report each
        self._tests[folder] += report.when == "setup"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._tests:
            terminalreporter.section("seconds of tests per folder")
            for line in self.lines():
                terminalreporter.write_line(line)

    def lines(self) -> Iterator[str]:
        for folder, seconds in sorted(self._seconds.items(), key=lambda one: -one[1]):
            budget = BUDGETS.get(folder, EACH)
            mark = "  BEYOND ITS BUDGET" if seconds > budget else ""
            yield f"{folder:<28}{self._tests[folder]:>6} tests{seconds:>8.1f} s of {budget:>4.0f}{mark}"
