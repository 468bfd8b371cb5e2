"""examples/csv_payments, part by part: what is read, written, rejected, decided and shown."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from examples.csv_payments.listing import list_folder
from examples.csv_payments.progress import Progress
from examples.csv_payments.reading import LONGEST_LINE, Line, read_lines
from examples.csv_payments.records import PaymentOutput, PaymentRecord, PaymentStatus, stable_id
from examples.csv_payments.rejecting import forget, keep, read_rejected
from examples.csv_payments.rules import is_hit, java_hash, judge
from examples.csv_payments.samples import sample, write_sample
from examples.csv_payments.steps import process_folder, process_input, process_output, process_status
from examples.csv_payments.writing import OutputFiles, read_output
from stepwell import Handle
from stepwell.pipelines import Pipeline, Rejected, await_
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.worker.dead_workers import let_reap

HEADER = b"ID,Recipient,Amount,Currency\n"
ID = UUID(int=7)


def read(path: Path, content: bytes) -> list[Line]:
    path.write_bytes(content)
    return list(read_lines(path))


def output(path: Path, csv_id: str, recipient: str = "Ana", message: str = "fine") -> PaymentOutput:
    return PaymentOutput(ID, str(path), csv_id, recipient, Decimal("1.50"), "EUR", ID, 1000, message, Decimal("1.01"))


def payment(csv_id: str) -> PaymentRecord:
    return PaymentRecord(ID, csv_id, "Ana", Decimal("1.50"), "EUR", "/in.csv")


@pytest.mark.parametrize("text", ["5047.29", '"5,047.29"', "5047.290", "05047.29"])
def test_an_amount_is_read_exactly_however_it_is_grouped(tmp_path: Path, text: str) -> None:
    [line] = read(tmp_path / "a.csv", HEADER + f"1,Natasha Thomas,{text},AUD\n".encode())

    assert line.payment is not None
    assert line.payment.amount == Decimal("5047.29")
    assert line.payment.id == stable_id("PaymentRecord", tmp_path / "a.csv", "1", "Natasha Thomas",
                                        Decimal("5047.29"), "AUD")  # fmt: skip


@pytest.mark.parametrize("text", ["", "0", "0.00", "-1", "1,00.00", "1.2.3", "1e3", "NaN", "٣", "9" * 40, "1_000"])
def test_an_invalid_amount_is_reported_with_its_line_number(tmp_path: Path, text: str) -> None:
    lines = read(tmp_path / "a.csv", HEADER + f'1,Ana,"{text}",EUR\n2,Bo,2.00,EUR\n'.encode())

    assert [(line.number, line.payment is None) for line in lines] == [(2, True), (3, False)]
    assert "Amount" in str(lines[0].problem)


def test_a_row_that_is_too_long_is_reported_and_the_next_one_is_read(tmp_path: Path) -> None:
    lines = read(tmp_path / "a.csv", HEADER + b"1," + b"x" * 5 * LONGEST_LINE + b",1.00,EUR\n2,Bo,2.00,EUR")

    assert [(line.number, line.problem) for line in lines] == [
        (2, f"the line is longer than {LONGEST_LINE:,} bytes"), (3, None)
    ]  # fmt: skip


@pytest.mark.parametrize(("content", "told"), [(b"", []), (b"\n \n", []), (HEADER, []), (b"a;b\n1;2\n", [1])])
def test_a_file_without_payments_gives_none_and_a_wrong_header_one_error(
    tmp_path: Path, content: bytes, told: list[int]
) -> None:
    lines = read(tmp_path / "a.csv", content)

    assert [line.number for line in lines] == told
    assert not any(line.payment for line in lines)


def test_outputs_appear_per_file_in_order_once_all_are_written(
    tmp_path: Path,
) -> None:
    one, other = tmp_path / "one.out", tmp_path / "other.out"
    one.write_text("from before")

    with OutputFiles() as files:
        for path, csv_id in ((one, "1"), (other, "2"), (one, "3")):
            files.write(output(path, csv_id))
        before = one.read_text(), other.exists()
        finished = list(files.finish())

    assert before == ("from before", False)
    assert finished == [one, other]
    assert [[row["CSV Id"] for row in read_output(path)] for path in finished] == [["1", "3"], ["2"]]
    assert len(list(tmp_path.iterdir())) == 2


def test_an_error_keeps_old_outputs_and_leftovers_of_a_kill_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "[1].out"
    path.write_text("from before")
    (tmp_path / ".[1].out.killed.part").write_text("half of it")

    with OutputFiles() as files:
        files.write(output(path, "1"))  # and then an error: nothing is finished

    assert [left.name for left in tmp_path.iterdir()] == ["[1].out"]
    assert path.read_text() == "from before"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1"])
def test_text_that_looks_like_a_formula_is_quoted_and_amounts_are_not(tmp_path: Path, text: str) -> None:
    with OutputFiles() as files:
        files.write(output(tmp_path / "a.out", text, text, text))
        [path] = files.finish()

    [row] = read_output(path)
    assert [row[name] for name in ("CSV Id", "Recipient", "Message")] == [f"'{text}"] * 3
    assert (row["Amount"], row["Fee"]) == ("1.50", "1.01")


def test_a_row_rejected_again_is_kept_once_and_a_new_read_starts_empty(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rejected = [
        Rejected(pipeline="p", instance_id=1, step="s", item=f"row {n}", reason="broken", place=f"{path}:{n}")
        for n in (2, 5, 2, 5, 9)
    ]

    for one in rejected:
        keep(one)
    kept = read_rejected(path)
    forget(path)

    assert [(line.line, line.text, line.reason) for line in kept] == [
        (n, f"row {n}", "broken") for n in (2, 5, 9)
    ]
    assert read_rejected(path) == []


def test_the_provider_decides_as_the_one_in_java_does() -> None:
    """String.hashCode, Objects.hash and UUID.nameUUIDFromBytes, as Java documents them."""
    assert java_hash("hello") == 99162322
    assert stable_id("PaymentRecord", "1", Decimal("5.10")) == stable_id("PaymentRecord", " 1 ", Decimal("5.1"))
    assert stable_id("PaymentRecord", "1").version == 3
    assert sum(is_hit(str(number), "provider-reject", 0.08) for number in range(1, 1_001)) == 93
    assert judge(payment("1"), 0.08) == judge(payment("1"), 0.08)
    assert [judge(payment("1"), rate).status for rate in (0.0, 1.0)] == ["Complete", "Rejected"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_growing_bars_and_other_outputs_every_tenth() -> None:
    shown, told = Terminal(), io.StringIO()

    for out in (shown, told):
        progress = Progress(1_000, out)
        for answered in (0, 10, 500, 1_000):
            progress.show({"asked": 1_000, "answered": answered})

    assert shown.getvalue().count("\x1b[2A\x1b[J") == 3
    assert "█" * 20 + "░" * 20 in shown.getvalue()
    assert [line.split("  ")[-1] for line in told.getvalue().splitlines()] == [
        f"asked 1,000, answered {number} of 1,000" for number in ("0", "500", "1,000")
    ]
    assert "\x1b" not in told.getvalue()


def begin(folder: Path) -> None:
    folder.mkdir()
    write_sample(folder / "b.csv", 700)


@asynccontextmanager
async def interrupted(make_harness: MakeHarness, folder: Path) -> AsyncIterator[tuple[Harness, Handle[Any]]]:
    """A run over b.csv with a worker that dies when 500 of 700 payments are asked; the block runs before the next
    worker."""
    begin(folder)
    ask = await_(
        "Ask", over="manual", input=PaymentRecord, output=PaymentStatus, window=2_000,
        idempotency=("csvId", "recipient", "amount", "currency"),
    )  # fmt: skip
    pipeline = Pipeline("payments", [process_folder, process_input, ask, process_status, process_output])
    h = await make_harness([pipeline], drain_timeout=timedelta(0), reap=timedelta(milliseconds=20))
    run = await h.engine.start(pipeline, list_folder(folder))
    with armed("ask_each.appended", hold=True) as appended:
        async with h.engine.worker():
            await appended.reached()
    yield h, run
    async with h.engine.worker():
        await let_reap(h)
        await run.wait(timeout=30, until="settled")


async def asked(h: Harness) -> list[str]:
    """The files and lines that were asked about, in their order."""
    rows = await h.sql("select request from stepwell.interactions order by item")
    payments = [json.loads(row["request"]) for row in rows]
    return [f"{Path(one['csvPaymentsInputFilePath']).name} {one['csvId']}" for one in payments]


async def test_a_file_that_arrives_during_a_run_is_left_for_the_next_one(
    make_harness: MakeHarness, tmp_path: Path
) -> None:
    """The mission audit's script p20: none of b.csv is asked twice, and the next run asks about a.csv."""
    folder = tmp_path / "payments"
    async with interrupted(make_harness, folder) as (h, run):
        write_sample(folder / "a.csv", 300)

    assert (await run.get()).status == "awaiting_external"
    assert await asked(h) == [f"b.csv {number}" for number in range(1, 701)]
    assert list_folder(folder).files == ("a.csv", "b.csv")


async def test_a_listed_file_that_changes_during_its_run_fails_it(make_harness: MakeHarness, tmp_path: Path) -> None:
    folder = tmp_path / "payments"
    async with interrupted(make_harness, folder) as (h, run):
        lines = [*sample(700)]
        (folder / "b.csv").write_text("\n".join([lines[0], "0,Ana,1.00,EUR", *lines[1:]]))

    failed = await h.assert_failed(run, "SourceChanged")
    assert failed.error is not None
    assert failed.error.message.startswith("item 0 of step 'Ask' of payments was")
    assert len(await asked(h)) == 500


def test_a_path_that_is_no_folder_is_not_listed(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="nowhere is not a folder"):
        list_folder(tmp_path / "nowhere")
