"""Reads payments from a CSV file, line by line: a broken line is reported and stops no other line."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from examples.csv_payments.records import PaymentRecord, stable_id

HEADER: Final = ("ID", "Recipient", "Amount", "Currency")
LONGEST_LINE: Final = 10_000  # bytes: memory holds one line, however large the file is
LONGEST_CELL: Final = 1_000
SHOWN: Final = 200  # characters of a broken line
_AMOUNT: Final = re.compile(r"(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)(?:\.[0-9]+)?")  # 5047.29 or 5,047.29
_MOST_DIGITS: Final = 30
_CURRENCY: Final = re.compile(r"[A-Z]{3}")


class Line(NamedTuple):
    """One line of a file: the payment in it, or what is wrong with it."""

    number: int
    text: str
    payment: PaymentRecord | None
    problem: str | None = None


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a file, without blank ones and the header. One payment is one line."""
    header: tuple[str, ...] | None = None
    with path.open("rb") as file:
        for number, raw in enumerate(_raw_lines(file), 1):
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8", "backslashreplace")
            if not text.strip():
                continue
            try:
                cells = _cells(raw, text)
                if header is None:
                    header = _check_header(cells)
                    continue
                payment = _payment(path, cells)
            except ValueError as error:
                yield Line(number, text.strip()[:SHOWN], None, str(error))
                if header is None:
                    return  # without the right header the columns are unknown
            else:
                yield Line(number, text.strip(), payment)


def _raw_lines(file: BinaryIO) -> Iterator[bytes]:
    """Lines with their ends; of one that is too long, the beginning."""
    while line := file.readline(LONGEST_LINE + 1):
        rest = line
        while len(rest) > LONGEST_LINE and not rest.endswith(b"\n"):
            rest = file.readline(LONGEST_LINE + 1)
        yield line


def _cells(raw: bytes, text: str) -> list[str]:
    if len(raw) > LONGEST_LINE:
        raise ValueError(f"the line is longer than {LONGEST_LINE:,} bytes")
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: byte 0x{raw[error.start]:02x} at {error.start + 1}") from error
    if "\0" in text:
        raise ValueError("has a NUL")
    try:
        [cells] = csv.reader([text.rstrip("\r\n")], strict=True, skipinitialspace=True)
    except csv.Error as error:  # such as a quote that is not closed
        raise ValueError(f"not CSV: {error}") from error
    return [cell.strip() for cell in cells]


def _check_header(cells: list[str]) -> tuple[str, ...]:
    if [cell.lower() for cell in cells] != [name.lower() for name in HEADER]:
        raise ValueError(f"the header is {','.join(cells)[:SHOWN]!r}, not {','.join(HEADER)!r}: the file is not read")
    return HEADER


def _payment(path: Path, cells: list[str]) -> PaymentRecord:
    if len(cells) != len(HEADER):
        raise ValueError(f"has {len(cells)} columns, not {len(HEADER)}")
    csv_id, recipient, amount, currency = cells
    for name, cell in zip(HEADER, cells, strict=True):
        if not cell:
            raise ValueError(f"{name} is empty")
        if len(cell) > LONGEST_CELL:
            raise ValueError(f"{name} is longer than {LONGEST_CELL:,} characters")
    if not _AMOUNT.fullmatch(amount) or len(amount) > _MOST_DIGITS or not Decimal(value := amount.replace(",", "")):
        raise ValueError(f"Amount {amount[:SHOWN]!r} is not an amount above 0, such as 5047.29 or 5,047.29")
    if not _CURRENCY.fullmatch(currency):
        raise ValueError(f"Currency {currency[:SHOWN]!r} is not a code of three letters, such as EUR")
    number = Decimal(value)
    return PaymentRecord(
        stable_id("PaymentRecord", path, csv_id, recipient, number, currency), csv_id, recipient, number, currency,
        str(path),
    )  # fmt: skip
