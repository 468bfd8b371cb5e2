"""No two places of the library share twelve lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.quality.figure import SOURCE

SHARED = 12  # lines that two places have in common
NO_STATEMENTS = {"migrations", "schema.sql"}  # copies of statements, which other tests compare
PASSED_OVER = re.compile(r"(?:--|#|import |from [\w.]+ import |\W*$).*")  # comments, imports, lone punctuation


def counted(text: str) -> list[tuple[int, str]]:
    """The lines that count, with their numbers and single spaces."""
    lines = ((number, " ".join(line.split())) for number, line in enumerate(text.splitlines(), 1))
    return [(number, line) for number, line in lines if not PASSED_OVER.fullmatch(line)]


def duplicates(texts: Iterator[tuple[str, str]]) -> list[str]:
    """Pairs of places that share lines, by their first lines; of a longer run its beginning."""
    seen: dict[tuple[str, ...], tuple[str, int, int]] = {}
    found, before = [], None
    for name, text in texts:
        lines = counted(text)
        for at in range(len(lines) - SHARED + 1):
            window = tuple(line for _, line in lines[at : at + SHARED])
            first = seen.setdefault(window, (name, at, lines[at][0]))
            if first[:2] == (name, at):
                before = None
                continue
            run = (first[0], first[1] - at, name)
            if run != before:
                found.append(f"{first[0]}:{first[2]} ~ {name}:{lines[at][0]}")
            before = run
    return found


def sources() -> Iterator[tuple[str, str]]:
    for path in sorted([*SOURCE.rglob("*.py"), *SOURCE.rglob("*.sql")]):
        inside: Path = path.relative_to(SOURCE)
        if not NO_STATEMENTS & set(inside.parts):
            yield inside.as_posix(), path.read_text("utf-8")


def test_no_two_places_share_twelve_lines() -> None:
    assert duplicates(sources()) == []


@pytest.mark.parametrize(("lines", "places"), [(11, []), (12, ["a:2 ~ b:1"]), (15, ["a:2 ~ b:1"])])
def test_shared_lines_are_found_however_they_are_indented(lines: int, places: list[str]) -> None:
    shared = "".join(f"f({number})\n" for number in range(lines))
    indented = "".join(f"  f({number})\n\n  # why\n" for number in range(lines))

    assert duplicates(iter([("a", f"begin\n{shared}end\n"), ("b", indented)])) == places
