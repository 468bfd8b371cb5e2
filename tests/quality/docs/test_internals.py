"""The internal pages name tests and statements that exist, and stay as short as they promise."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.quality.docs.pages import ROOT, prose
from tests.quality.figure import SOURCE

INTERNALS = ROOT / "docs" / "internals"
RACES = INTERNALS / "races.md"
FAST_PATHS = INTERNALS / "fast-paths.md"
FLOWS = INTERNALS / "signals-and-interactions.md"
JOB = INTERNALS / "a-job-step-by-step.md"
STATEMENTS = ROOT / "src" / "stepwell" / "_store" / "sql"
KILOBYTE = 1024


def _rows(page: Path) -> list[list[str]]:
    """All rows of all tables of a page, without their heads."""
    lines = prose(page).splitlines()
    rules = {number for number, line in enumerate(lines) if set(line) == set("|-")}
    bodies = [line for number, line in enumerate(lines) if line.startswith("|") and not {number, number + 1} & rules]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in bodies]


def test_every_row_of_an_internal_table_is_complete() -> None:
    rows = [*_rows(RACES), *_rows(FAST_PATHS)]

    assert [row for row in rows if not all(row)] == []


@pytest.mark.parametrize("page", [RACES, FAST_PATHS], ids=["races", "fast-paths"])
def test_every_test_that_an_internal_table_names_exists(page: Path) -> None:
    named = {name for row in _rows(page) for name in row[-1].split(", ")}

    assert named
    assert [name for name in sorted(named) if not (ROOT / "tests" / f"{name}.py").is_file()] == []


def test_every_statement_of_the_fast_paths_exists() -> None:
    named = {cell for row in _rows(FAST_PATHS) if re.fullmatch(r"[a-z_]+/[a-z_]+", cell := row[1])}

    assert named
    assert [name for name in sorted(named) if not (STATEMENTS / f"{name}.sql").is_file()] == []


def test_no_race_is_listed_twice() -> None:
    events = [row[0] for row in _rows(RACES)]

    assert [event for event in events if events.count(event) > 1] == []


@pytest.mark.parametrize("page", sorted([*INTERNALS.glob("*.md"), *(ROOT / "docs" / "decisions").glob("*.md")]),
                         ids=lambda page: page.name)
def test_an_internal_page_stays_within_its_size(page: Path) -> None:
    longer = {RACES: 20, JOB: 16}  # a row per race, a line per function
    most = longer.get(page, 4 if page.parent == INTERNALS else 3)

    assert len(page.read_bytes()) <= most * KILOBYTE


def test_every_function_that_the_flows_name_exists() -> None:
    named = re.findall(r"`([\w.]+)`\s+\(`([\w/]+\.py)`\)", FLOWS.read_text())
    missing = []
    for function, module in named:
        found = {
            f"{outer.name}.{inner.name}" if isinstance(outer, ast.ClassDef) else inner.name
            for outer in ast.walk(ast.parse((SOURCE / module).read_text()))
            for inner in ast.iter_child_nodes(outer)
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        missing += [(function, module)] if function not in found else []

    assert len(named) > 20
    assert missing == []
