"""examples/csv_payments, part by part: what is read, written, put aside, decided and shown."""

from __future__ import annotations

import io
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest

from examples.csv_payments.progress import Progress
from examples.csv_payments.reading import LONGEST_LINE, Line, read_lines
from examples.csv_payments.records import PaymentOutput, PaymentRecord, stable_id
from examples.csv_payments.rejecting import forget, keep, read_rejected
from examples.csv_payments.rules import is_hit, java_hash, judge
from examples.csv_payments.writing import OutputFiles, read_output
from stepwell.pipelines import Rejected

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
def test_what_is_no_amount_above_zero_is_told_with_its_line(tmp_path: Path, text: str) -> None:
    lines = read(tmp_path / "a.csv", HEADER + f'1,Ana,"{text}",EUR\n2,Bo,2.00,EUR\n'.encode())

    assert [(line.number, line.payment is None) for line in lines] == [(2, True), (3, False)]
    assert "Amount" in str(lines[0].problem)


def test_a_line_that_is_too_long_is_told_and_the_next_one_is_read(tmp_path: Path) -> None:
    lines = read(tmp_path / "a.csv", HEADER + b"1," + b"x" * 5 * LONGEST_LINE + b",1.00,EUR\n2,Bo,2.00,EUR")

    assert [(line.number, line.problem) for line in lines] == [
        (2, f"the line is longer than {LONGEST_LINE:,} bytes"), (3, None)
    ]  # fmt: skip


@pytest.mark.parametrize(("content", "told"), [(b"", []), (b"\n \n", []), (HEADER, []), (b"a;b\n1;2\n", [1])])
def test_a_file_without_payments_gives_none_and_one_with_another_header_is_told_once(
    tmp_path: Path, content: bytes, told: list[int]
) -> None:
    lines = read(tmp_path / "a.csv", content)

    assert [line.number for line in lines] == told
    assert not any(line.payment for line in lines)


def test_outputs_are_sorted_out_by_file_in_the_order_of_the_files_and_appear_when_all_are_written(
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


def test_an_error_leaves_what_was_there_and_what_a_killed_process_left_is_cleared_away(tmp_path: Path) -> None:
    path = tmp_path / "[1].out"
    path.write_text("from before")
    (tmp_path / ".[1].out.killed.part").write_text("half of it")

    with OutputFiles() as files:
        files.write(output(path, "1"))  # and then an error: nothing is finished

    assert [left.name for left in tmp_path.iterdir()] == ["[1].out"]
    assert path.read_text() == "from before"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1"])
def test_what_a_spreadsheet_would_take_for_a_formula_is_quoted_and_amounts_are_not(tmp_path: Path, text: str) -> None:
    with OutputFiles() as files:
        files.write(output(tmp_path / "a.out", text, text, text))
        [path] = files.finish()

    [row] = read_output(path)
    assert [row[name] for name in ("CSV Id", "Recipient", "Message")] == [f"'{text}"] * 3
    assert (row["Amount"], row["Fee"]) == ("1.50", "1.01")


def test_a_line_that_is_rejected_again_is_kept_once_and_a_file_that_is_read_anew_begins_anew(tmp_path: Path) -> None:
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


def test_a_terminal_has_bars_that_grow_in_place_and_others_a_line_for_every_tenth() -> None:
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
