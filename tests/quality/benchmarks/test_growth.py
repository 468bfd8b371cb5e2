"""The measurements of growth run, with hundreds of rows, and their reports are complete; no figure is judged."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks import taken
from benchmarks.growth import report as growth
from benchmarks.growth import run as growth_run
from benchmarks.growth import scenarios
from benchmarks.growth.bulk import Bulk
from benchmarks.growth.comparing import SCHEDSTAT
from benchmarks.growth.leavings import Leaving
from benchmarks.growth.meter import Cost
from benchmarks.growth.site import Round
from benchmarks.soak import report as soak
from benchmarks.soak import run as soak_run
from benchmarks.soak.samples import Cpu, Sample, Tuples, changes, parts
from tests.conftest import MakeHarness

BEGAN = datetime(2026, 11, 15, tzinfo=UTC)
SERVER = {"server_version": "18.4", "fsync": "on"}
EMPTY = Round(Cost(2, 3, 1_000), Cost(1, 1, 10), Cost(3, 4, 2_000))
DEARER = Round(Cost(4, 6, 1_100), Cost(1, 1, 10), Cost(3, 4, 2_000))


def sample(steps: int, seconds: float, *, megabytes: float = 10) -> Sample:
    tuples = Tuples(live=900, dead=100, vacuums=steps // 1_000, updated=steps, hot=steps // 2, deleted=0)
    sizes = {"instances": round(megabytes * 1e6), "instances_claim": 2_000_000}
    return Sample(steps, seconds, steps * 500, 31.0, sizes, {"instances": tuples}, Cpu(steps * 20.0, steps * 30.0))


def steady(*, last: float = 10, pace: float = 1.0) -> list[Sample]:
    """Ten samples of 500 steps, one a second; the last thousand steps at another pace, in a table of another size."""
    samples = [sample(steps, steps / 500) for steps in range(0, 4_001, 500)]
    return [*samples, *(sample(steps, 8 + (steps - 4_000) / 500 / pace, megabytes=last) for steps in (4_500, 5_000))]


@pytest.mark.skipif(not SCHEDSTAT.exists(), reason="only Linux says what a process took of a core")
async def test_every_scenario_of_growth_runs(make_harness: MakeHarness, capsys: pytest.CaptureFixture[str]) -> None:
    h = await make_harness()

    await growth_run.Growth(h.url, growth_run.parse(["--quick"])).run()

    shown = capsys.readouterr().out
    assert [s.label for s in scenarios.ALL.values() if f"\n| {s.label} | " not in shown] == []
    assert "\n| a step | WAL, bytes | " in shown
    assert "\n| `start_many` of 100 | " in shown


async def test_a_soak_runs_and_ends_with_its_verdict(
    make_harness: MakeHarness, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    h = await make_harness()
    monkeypatch.setattr(taken, "RESULTS", tmp_path)

    few = ["--steps", "2000", "--every", "100", "--backlog", "50", "--warm-up", "0.1"]
    await soak_run.Soak(h.url, soak_run.parse(few)).run()

    shown = capsys.readouterr().out
    assert "\n| `instances_claim`, MB | " in shown
    assert "lat" in shown.splitlines()[-2]


def test_a_growth_scenario_is_met_by_cpu_time_and_by_buffers() -> None:
    kept = growth.Figure("a", "a", EMPTY, EMPTY, 1.3)
    dearer = replace(kept, around=DEARER)
    reported = replace(dearer, most=None)

    assert [kept.is_met, dearer.is_met, reported.is_met] == [True, False, None]
    assert dearer.cpu == pytest.approx(8 / 6)


def test_the_report_of_growth_has_every_cost_beside_the_empty_case(tmp_path: Path) -> None:
    figure = growth.Figure("held", "a transaction held open", EMPTY, DEARER, 1.3)
    left = Leaving("of one step", 1_200, 2.9, 0.3)
    bulk = Bulk("a spawn", 2.0, 1.0, 1.5, 40)
    report = growth.Report(BEGAN, "make growth", 60.0, SERVER, [figure], [left], [bulk])

    written = json.loads(report.write(tmp_path).read_text("utf-8"))

    row = "| a transaction held open | 4.00 | 2.00 | 3.00 | 8.00 | 1.33 | 3,110 | 1.03 | 11.0 | 1.38 | 1.3 "
    assert row in report.table()
    assert "| of one step | 1,200 | 2.90 | 30% |" in report.table()
    assert "| a spawn | 2.0 | 1.0 | 1.5 | 40 |" in report.table()
    assert written["figures"][0]["ratios"]["cpu"] == pytest.approx(8 / 6)
    assert {"machine", "versions", "date", "command", "server", "leavings", "bulks"} <= set(written)


def test_a_soak_is_divided_into_parts_of_equally_many_steps() -> None:
    found = parts(steady())

    assert [part.steps for part in found] == [1_000, 2_000, 3_000, 4_000, 5_000]
    assert [round(part.rate) for part in found] == [500] * 5
    assert (found[1].python, found[1].server) == (20, 30)
    assert (found[1].wal, found[1].hot, found[1].dead, found[1].vacuums) == (500, 0.5, 0.1, 1)


@pytest.mark.parametrize(
    ("samples", "bent"),
    [
        (steady(), []),
        (steady(last=11.4, pace=0.9), []),
        (steady(last=8, pace=2), []),  # smaller and faster is no harm
        (steady(last=11.6), ["instances"]),
        (steady(pace=0.8), ["steps/s"]),
    ],
)
def test_a_soak_is_flat_if_its_last_part_is_like_its_second(samples: list[Sample], bent: list[str]) -> None:
    assert [change.name for change in changes(parts(samples)) if not change.is_flat] == bent


def test_the_report_of_a_soak_names_figures_that_are_not_flat(tmp_path: Path) -> None:
    report = soak.Report(BEGAN, "make soak-steps", 10.0, SERVER, "5,000 steps", steady(last=20), {"instances": 10**7})

    written = json.loads(report.write(tmp_path).read_text("utf-8"))

    assert "| `instances`, MB | 10.0 | 20.0 | 2.00 | **no** | 2.00 | 20.0 | 10.0 |" in report.table()
    assert report.verdict() == "Not flat, by more than 15%: instances."
    assert {"samples", "parts", "rebuilt", "verdict", "machine"} <= set(written)
