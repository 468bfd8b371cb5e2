"""Both checkers see in the public API what it promises, and find what is wrong: no more, no less.

A line of `cases/` that ends in `# error` must be reported, any other must not.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CASES = Path(__file__).parent / "cases"
ROOT = CASES.parents[2]
SOURCE = ROOT / "src"
MARK = re.compile(r"  # error$")

Place = tuple[str, int]  # a file and a line of it
Ask = Callable[[Path], dict[Place, str]]


def _expected() -> set[Place]:
    return {
        (case.name, number)
        for case in CASES.glob("*.py")
        for number, line in enumerate(case.read_text("utf-8").splitlines(), 1)
        if MARK.search(line)
    }


def _ask_mypy(folder: Path) -> dict[Place, str]:
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", "--strict", f"--cache-dir={folder}", str(CASES)],
        env={**os.environ, "MYPYPATH": str(SOURCE)}, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not ran.stderr, ran.stderr
    found = re.findall(r"^(.*?):(\d+): error: (.*)$", ran.stdout, re.MULTILINE)
    return {(Path(file).name, int(line)): message for file, line, message in found}


def _ask_pyright(folder: Path) -> dict[Place, str]:
    config = folder / "pyrightconfig.json"
    config.write_text(json.dumps({
        "include": [str(CASES)], "extraPaths": [str(SOURCE)], "typeCheckingMode": "standard",
        "reportUnusedCoroutine": False, "reportUnusedExpression": False,
    }))  # fmt: skip
    ran = subprocess.run(
        [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(config)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    report = json.loads(ran.stdout)
    assert report["summary"]["filesAnalyzed"] >= 2, report
    return {
        (Path(found["file"]).name, found["range"]["start"]["line"] + 1): found["message"]
        for found in report["generalDiagnostics"]
        if found["severity"] == "error"
    }


@pytest.mark.parametrize("ask", [_ask_mypy, _ask_pyright], ids=["mypy", "pyright"])
def test_a_type_checker_finds_the_marked_errors_and_no_others(ask: Ask, tmp_path: Path) -> None:
    """Typing: `Context[State]`, `Handle[Result]` and `send_mail.args(to=…)` mean what they say."""
    expected = _expected()

    reported = ask(tmp_path)

    unexpected = {place: message for place, message in reported.items() if place not in expected}
    assert (unexpected, expected - reported.keys()) == ({}, set())
    assert len(expected) > 40
