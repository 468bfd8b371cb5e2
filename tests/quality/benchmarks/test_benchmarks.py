"""The benchmark runs: every workload once, with tiny sizes. No test checks how fast anything is."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks import pairs, slots, workloads
from benchmarks.figures import Figure, Measure, Most, Share, Spread, percentile
from benchmarks.growth.comparing import SCHEDSTAT
from benchmarks.report import Report, number
from benchmarks.run import Benchmark, parse
from tests.conftest import MakeHarness

STEPS = Measure("drain", "steps/s", Share(0.5, "steps"))
LATENCY = Measure("latency, p50", "ms", Most(1.5))


def figure(measure: Measure, ours: float, *limit: float) -> Figure:
    return Figure("any", "", measure, Spread.of([ours]), Spread.of(limit) if limit else None)


async def test_every_workload_runs_beside_its_limit(
    make_harness: MakeHarness, capsys: pytest.CaptureFixture[str]
) -> None:
    h = await make_harness()

    await Benchmark(h.url, parse(["--quick", "--plain", *workloads.KNOWN])).run()

    shown = capsys.readouterr().out
    shown_here = [each for each in workloads.KNOWN.values() if each.name != "claims" or SCHEDSTAT.exists()]
    labels = [measure.label for workload in shown_here for measure in workload.measures.values()]
    assert [label for label in labels if f"\n| {label} | " not in shown] == []
    assert [shown.count(f" limit, {name}: ") for name in ("inserts", "bulk inserts")] == [2, 2]  # before and after


@pytest.mark.skipif(not SCHEDSTAT.exists(), reason="only Linux says what a process took of a core")
@pytest.mark.parametrize("shape", [slots.Rows(), slots.Counter()], ids=lambda shape: shape.name)
async def test_both_ways_to_count_slots_run_all_instances(make_harness: MakeHarness, shape: slots.Shape) -> None:
    h = await make_harness()

    figure = await slots.measure(h.url, shape, 40, 8)

    assert figure.pace > 0


def test_an_unknown_workload_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["drian"])

    assert "unknown: drian; known are drain, " in capsys.readouterr().err


def test_a_target_share_is_met_by_the_ratio_and_a_maximum_by_the_figure() -> None:
    met = [figure(STEPS, 600, 1_000), figure(LATENCY, 1.4)]
    missed = [figure(STEPS, 400, 1_000), figure(LATENCY, 1.6)]

    assert [found.is_met for found in met + missed] == [True, True, False, False]


def test_a_report_shows_ours_limit_ratio_and_target_side_by_side(tmp_path: Path) -> None:
    report = Report(
        datetime(2026, 11, 15, tzinfo=UTC), "make bench", 60.0, {"server_version": "18.4", "fsync": "on"},
        [figure(STEPS, 400, 1_000)],
    )  # fmt: skip

    written = json.loads(report.write(tmp_path).read_text("utf-8"))

    assert f"| drain | steps/s | 400 | 1,000 | 0.40 | {STEPS.target} | **no** |" in report.table()
    assert "PostgreSQL 18.4: fsync on" in report.table()
    assert written["figures"][0]["ratio"] == pytest.approx(0.4)
    assert {"machine", "versions", "date", "command", "server"} <= set(written)


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(value) for value in range(100, 0, -1)]

    assert (percentile(values, 50), percentile(values, 99), percentile([7.0], 99)) == (50.0, 99.0, 7.0)


def test_figures_show_significant_digits_only() -> None:
    assert [number(value) for value in (51_234.5, 876.5, 12.345, 1.234)] == ["51,200", "876", "12.3", "1.23"]


def test_a_row_below_its_share_of_the_previous_figure_is_named() -> None:
    steps, wait = ("drain", "steps/s"), ("latency, p50", "ms")
    before, now = {steps: 1_000.0, wait: 1.0, ("gone", "ms"): 1.0}, {steps: 940.0, wait: 0.9}

    compared = pairs.compare([(before, now), (before, now), (before, {steps: 1_000.0, wait: 2.0})])

    assert [(row.row, round(row.ratio, 2), row.is_slower) for row in compared] == [
        (steps, 0.94, True), (wait, 1.11, False),
    ]  # fmt: skip
    assert "| drain | steps/s | 1,000 | 940 | 0.94 (0.94\u20131.00) | **slower** |" in pairs.table("base", compared)
