"""Writes output files: sorted by input, each whole or not at all."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Self, TextIO

from examples.csv_payments.records import PaymentOutput

HEADER: Final = ("CSV Id", "Recipient", "Amount", "Currency", "Reference", "Status", "Message", "Fee")
QUOTE: Final = "'"
FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")


class OutputFiles:
    """Parts of files beside their places, one of them open at a time; `with OutputFiles() as files:`.

    Parts that are unfinished at the end of the block, as after an error, are removed. A killed process leaves a
    part behind: the next process that writes the same file removes it.
    """

    def __init__(self) -> None:
        self._parts: dict[Path, Path] = {}  # in the order in which they were started
        self._path: Path | None = None
        self._file: TextIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        for part in self._parts.values():
            part.unlink(missing_ok=True)

    def write(self, output: PaymentOutput) -> None:
        """Add a line to its file."""
        path = Path(output.csv_payments_output_filename)
        if path != self._path:
            self._turn_to(path)
        self._row(
            output.csv_id, output.recipient, output.amount, output.currency, output.conversation_id, output.status,
            output.message, output.fee,
        )  # fmt: skip

    def finish(self) -> Iterator[Path]:
        """Move each file to its place, instead of an existing one."""
        self._close()
        for path, part in list(self._parts.items()):
            part.replace(path)
            del self._parts[path]
            yield path

    def _turn_to(self, path: Path) -> None:
        self._close()
        self._path = path
        if part := self._parts.get(path):
            self._file = part.open("a", encoding="utf-8", newline="")
            return
        for left in path.parent.glob(f".{_literal(path.name)}.*.part"):
            left.unlink(missing_ok=True)
        handle, name = tempfile.mkstemp(".part", f".{path.name}.", path.parent)
        self._parts[path] = Path(name)
        self._file = os.fdopen(handle, "w", encoding="utf-8", newline="")
        os.fchmod(handle, 0o644)
        self._row(*HEADER)

    def _row(self, *cells: object) -> None:
        assert self._file is not None  # noqa: S101 - a file is open
        writer = csv.writer(self._file, quotechar=QUOTE, quoting=csv.QUOTE_ALL, lineterminator="\n")
        writer.writerow([_harmless(cell) for cell in cells])

    def _close(self) -> None:
        if self._file is not None:
            self._file.flush()
            with suppress(OSError):  # a file system without it
                os.fsync(self._file.fileno())
            self._file.close()
        self._file = self._path = None


def read_output(path: Path) -> list[dict[str, str]]:
    """The lines of an output file, by column."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, quotechar=QUOTE))


def _harmless(cell: object) -> object:
    """Put a quote before a text that a spreadsheet would take for a formula."""
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULAS) else cell


def _literal(name: str) -> str:
    """A name in which no character is a wildcard."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in name)
