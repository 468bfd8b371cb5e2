"""The harness of `make bench-peers`: its contract with a system's process, and its table. Nothing is installed here."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.figures import Spread
from benchmarks.peers.__main__ import WORKLOADS, parse
from benchmarks.peers.child import Answer, measure, read, started
from benchmarks.peers.environments import REQUIREMENTS, SYSTEMS
from benchmarks.peers.idle import count
from benchmarks.peers.systems.stepwell import Stepwell
from benchmarks.peers.table import NAMES, ROWS, Answers, Comparison, Limits
from benchmarks.peers.timing import WORKLOADS as TIMED
from tests.conftest import MakeHarness

ROOT = Path(__file__).parents[3]
HANGING = "import time; time.sleep(60)"


def comparison(answers: Answers) -> Comparison:
    systems = [name for name in SYSTEMS if any(name == system for system, _ in answers)]
    limits = [Limits("steps", Spread.of([900.0]), Spread.of([1_100.0]))]
    began = datetime(2026, 11, 15, tzinfo=UTC)
    return Comparison(began, "make bench-peers", 60.0, {"server_version": "18.4"}, limits, systems, answers)


def rate(value: float) -> Answer:
    return Answer({"rate": value}, settings="as it comes", versions={"it": "1.0"})


async def test_a_system_prints_what_the_contract_requires(make_harness: MakeHarness) -> None:
    h = await make_harness()

    answers = [
        await measure([sys.executable, "-m", "benchmarks.peers.systems.stepwell", h.url, workload, "--quick"], 60.0)
        for workload in ("three_steps", "fast_latency")
    ]

    assert answers[0].failed is None
    assert answers[0].values["rate"] > 0
    assert "500 slots" in answers[0].settings
    assert answers[1].missing == "the database notifies it of a start, it does not wait for a poll"


async def test_a_second_process_runs_what_the_first_has_started(make_harness: MakeHarness) -> None:
    h = await make_harness()
    first = Stepwell(h.url, "drain_two", {})
    await first.install()
    await first.open()
    await first.start_many(10)

    command = [sys.executable, "-m", "benchmarks.peers.systems.stepwell", h.url, "drain_two", "--second"]
    async with started(command) as process, asyncio.timeout(60):
        assert process.stdin is not None
        assert process.stdout is not None
        ready = json.loads(await process.stdout.readline())
        process.stdin.write(b"work\n")
        begun = 0
        while begun < 10:
            begun += json.loads(await process.stdout.readline())["begun"]
        await first.until_none(first.left)

    assert ready == {"ready": True}
    assert begun == 10
    await first.close()
    await first.asker.close()


@pytest.mark.parametrize(("workload", "value"), [("drain_two", "rate"), ("signal_latency", "p99"), ("timer", "p99")])
async def test_a_system_is_measured_by_two_processes_by_signals_and_by_timers(
    make_harness: MakeHarness, workload: str, value: str
) -> None:
    h = await make_harness()

    answer = await measure(
        [sys.executable, "-m", "benchmarks.peers.systems.stepwell", h.url, workload, "--quick"], 60.0
    )

    assert answer.failed is None
    assert answer.values[value] > 0


async def test_a_system_that_hangs_is_stopped_and_reported() -> None:
    answer = await measure([sys.executable, "-c", HANGING], 0.2)

    assert answer == Answer(failed="cut off after 0.2 s")


async def test_no_process_outlives_its_block() -> None:
    async with started([sys.executable, "-c", HANGING]) as process:
        pass

    assert process.returncode == -signal.SIGKILL


def test_a_system_that_fails_has_no_figures_and_its_error_is_reported() -> None:
    lines = '{"settings": "any", "versions": {}}\n{"values": {"rate": 1.0}, "note": null}\n'

    answer = read(lines, 1, "Traceback\nValueError: no such queue\n")

    assert answer == Answer(settings="any", failed="ended with 1: …Traceback\nValueError: no such queue")


def test_an_unknown_option_is_refused_by_name() -> None:
    module = "benchmarks.peers.systems.stepwell"

    ended = subprocess.run(
        [sys.executable, "-m", module, "", "drain", "slosts=3"], cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert "unknown: slosts; known are slots" in ended.stderr


def test_the_best_of_a_row_is_bold_and_lost_rows_are_listed() -> None:
    answers = {
        ("stepwell", "drain"): [rate(300), rate(200), rate(100)], ("dbos", "drain"): [rate(400)],
        ("stepwell", "latency"): [Answer({"p50": 1.0, "p99": 3.0})],
        ("dbos", "latency"): [Answer({"p50": 2.0, "p99": 2.0})],
    }  # fmt: skip

    shown = comparison(answers).markdown()

    assert "| drain a backlog of one step each | steps/s | 200 | **400** |" in shown
    assert "| idle: started → step begins, p50 | ms | **1.00** | 2.00 |" in shown
    lost = shown.partition("Where Stepwell loses:\n\n")[2].partition("\n\n")[0].splitlines()
    assert lost == [
        "- drain a backlog of one step each: DBOS 400, Stepwell 200 steps/s",
        "- idle: started → step begins, p99: DBOS 2.00, Stepwell 3.00 ms",
    ]


def test_each_reason_for_a_missing_figure_is_one_footnote() -> None:
    answers = {
        ("stepwell", "parked"): [rate(300)], ("pgqueuer", "parked"): [Answer(missing="no signals")],
        ("chancy", "parked"): [Answer(missing="no signals")], ("absurd", "parked"): [Answer(failed="cut off")],
        ("dbos", "parked"): [Answer({"rate": 100.0}, note="by bulk"), Answer(failed="cut off")],
    }  # fmt: skip

    shown = comparison(answers).markdown()

    assert "| wakes/s | **300** | – (1) | – (1) | – (2) | 100 (3) (4) |" in shown  # noqa: RUF001 - as it is shown
    assert "\n\n1. no signals.\n2. cut off.\n3. by bulk.\n4. once: cut off.\n\n" in shown


def test_a_comparison_states_its_machine_versions_and_settings(tmp_path: Path) -> None:
    compared = comparison({("stepwell", "drain"): [rate(300)]})

    written = json.loads(compared.write(tmp_path).read_text("utf-8"))

    assert "2026-11-15 00:00 UTC, 60 s, `make bench-peers`" in compared.markdown()
    assert "- **Stepwell** (it 1.0): as it comes." in compared.markdown()
    assert written["answers"][0]["repetitions"][0]["values"] == {"rate": 300}
    assert {"machine", "versions", "date", "command", "server", "limits"} <= set(written)


def test_statements_are_counted_by_database() -> None:
    log = "\n".join((
        "one|LOG:  statement: BEGIN", "one|LOG:  execute __asyncpg_stmt_1__: select 1", "\tfrom nowhere",
        "one|LOG:  execute <unnamed>: update t", "one|DETAIL:  Parameters: $1 = '1'", "two|LOG:  statement: BEGIN",
    ))  # fmt: skip

    assert count(log, "one") == 3


def test_every_system_has_a_file_a_name_and_pinned_versions() -> None:
    files = {path.stem for path in (ROOT / "benchmarks/peers/systems").glob("[!_]*.py")}

    assert files == set(SYSTEMS) == set(NAMES)
    assert [word for words in REQUIREMENTS.values() for word in words if "==" not in word] == []
    assert set(WORKLOADS) == set(TIMED) == {row.workload for row in ROWS}


def test_an_unknown_system_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["abserd"])

    assert "unknown: abserd; known are stepwell, pgqueuer, " in capsys.readouterr().err
