"""How output is written: colours on a terminal, tables for people, JSON for programs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from typing import Any, TextIO

from stepwell import Instance, Status

STATUS_COLOURS = {Status.DONE: "green", Status.FAILED: "red", Status.CANCELLED: "yellow", Status.EXECUTING: "cyan"}
_CODES = {"bold": 1, "dim": 2, "red": 31, "green": 32, "yellow": 33, "magenta": 35, "cyan": 36}


@dataclass(frozen=True)
class Paint:
    """Colours, if the stream is a terminal."""

    on: bool

    @classmethod
    def of(cls, stream: TextIO) -> Paint:
        return cls(stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")

    def __call__(self, text: str, *styles: str) -> str:
        if not self.on or not styles:
            return text
        return f"\x1b[{';'.join(str(_CODES[style]) for style in styles)}m{text}\x1b[0m"

    def status(self, status: Status, text: str | None = None) -> str:
        colour = STATUS_COLOURS.get(status)
        return self(text or status, *([colour] if colour else []))


class Table:
    """Columns that line up. Rows may come page by page: columns grow, and the header is written once."""

    def __init__(self, *headers: str, paint: Paint, indent: str = "") -> None:
        self._headers = headers
        self._widths = [len(header) for header in headers]
        self._paint = paint
        self._indent = indent
        self._is_begun = False

    def lines(self, rows: Iterable[Sequence[str]], styles: Iterable[Sequence[str]] | None = None) -> Iterator[str]:
        """The lines of some rows; `styles` colours each row's cells, "" for none."""
        texts = [[printable(cell) for cell in row] for row in rows]
        self._widths = [max(column) for column in zip(self._widths, *([len(c) for c in r] for r in texts), strict=True)]
        if not self._is_begun:
            self._is_begun = True
            yield self._line(self._headers, ["dim"] * len(self._headers))
        for text, style in zip(texts, styles or ([()] * len(texts)), strict=True):
            yield self._line(text, style or [""] * len(text))

    def _line(self, cells: Sequence[str], styles: Sequence[str]) -> str:
        padded = [cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True)]
        padded[-1] = cells[-1]
        if self._paint.on:
            padded[-1] = self._cut(padded)
        pairs = zip(padded, styles, strict=True)
        painted = (self._paint(cell, style) if style and cell else cell for cell, style in pairs)
        return (self._indent + "  ".join(painted)).rstrip()

    def _cut(self, cells: Sequence[str]) -> str:
        """The last cell, cut to the width of the terminal."""
        last = cells[-1]
        room = shutil.get_terminal_size().columns - len(self._indent) - sum(len(cell) + 2 for cell in cells[:-1])
        return last if len(last) <= room or room < 2 else f"{last[: room - 1]}…"  # noqa: PLR2004 - one letter and the ellipsis


def printable(text: str) -> str:
    """Text that cannot control the terminal: unprintable characters are escaped; line breaks and tabs stay."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def record(instance: Instance) -> dict[str, Any]:
    """An instance as JSON: every field, and why it waits."""
    return {**asdict(instance), "waiting_for": instance.waiting_for}


def to_json(value: object) -> str:
    """One line of JSON in ASCII, which every locale can show."""
    return json.dumps(value, default=_plain)


def pretty(value: object) -> str:
    """JSON for people: short values on one line, others indented."""
    flat = json.dumps(value, default=_plain, ensure_ascii=False)
    return printable(flat if len(flat) <= 80 else json.dumps(value, default=_plain, ensure_ascii=False, indent=2))  # noqa: PLR2004 - the width of a line


def _plain(value: object) -> str:
    if isinstance(value, date | datetime):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is no JSON value")


def where(instance: Instance) -> str:
    """Its present step; for an item of a pipeline also the item's number."""
    return instance.step if instance.item is None else f"{instance.step} #{instance.item}"


def waits(instance: Instance, now: datetime) -> str | None:
    """What it waits for, and how long at most; None when it runs, may run, or has ended."""
    if instance.waiting_for is None or instance.deadline is None:
        return instance.waiting_for
    return f"{instance.waiting_for}, for {brief(instance.deadline - now)} at most"


def brief(duration: timedelta) -> str:
    """A duration in its largest unit: 5s, 12m, 3h, 8d."""
    total = max(0, int(duration.total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if total >= size:
            return f"{total // size}{unit}"
    return f"{total}s"
