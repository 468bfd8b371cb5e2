"""`python -m tests.quality.mutants [name …]`: breaks one guard after another in a copy of the tree, and wants a red
test.

The checkout stays as it is. Without a mutation the same tests have to pass. Exits with 1 if a mutation survives.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from xml.etree import ElementTree

from tests.quality.mutants.mutation import ROOT, Mutation
from tests.quality.mutants.mutations import MUTATIONS

COPIED = ("src", "tests", "examples", "pyproject.toml")
LEFT_OUT = shutil.ignore_patterns("__pycache__", ".hypothesis", ".pytest_cache")
SOUND = "tests/store/test_statements.py::test_postgres_prepares_every_statement"  # passes, or the mutation is no SQL
SOUND_CASE = "test_statements::test_postgres_prepares_every_statement"
TIMEOUT = 600.0  # seconds for the tests of one mutation
# A control that changes the same text fails because of the mutation, and shows nothing about behaviour.
STUMBLED = re.compile(r"has no .* any more", re.DOTALL)


@dataclass(frozen=True)
class Outcome:
    """The results of the tests of one tree."""

    name: str
    place: str
    passed: int
    failed: tuple[str, ...]
    trouble: str
    took: float

    @property
    def verdict(self) -> str:
        return self.trouble or ("caught" if self.failed else "SURVIVED")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.quality.mutants", description=__doc__)
    parser.add_argument("name", nargs="*", help="mutations whose name or place has this in it; all without it")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    given = parser.parse_args(arguments)
    chosen = [m for m in MUTATIONS if not given.name or any(part in f"{m.name} {m.place}" for part in given.name)]
    if not chosen:
        parser.error(f"no mutation is called {' or '.join(given.name)}")
    for mutation in chosen:
        mutation.check(ROOT)  # before anything runs
    with _copy(ROOT) as whole:  # so that the checkout may change meanwhile
        control = _run(whole, "without a mutation", "", [test for mutation in chosen for test in mutation.tests])
        if control.failed or control.trouble:
            _say("without a mutation:", control.trouble or "failed", *control.failed)
            return 1
        _say(f"without a mutation: {control.passed} passed, {control.took:.0f} s")
        with ThreadPoolExecutor(given.jobs) as pool:
            outcomes = list(pool.map(partial(_try, whole), chosen))
    return _report(outcomes)


def _try(whole: Path, mutation: Mutation) -> Outcome:
    with _copy(whole) as tree:
        mutation.apply(tree)
        try:
            outcome = _run(tree, mutation.name, mutation.place, mutation.tests)
        finally:
            if mutation.functions:  # its database is a template of its own, which no other run uses again
                _python(tree, "-m", "tests.quality.mutants.forget")
    _say(f"{outcome.verdict:9} {mutation.name} ({len(outcome.failed)} failed, {outcome.took:.0f} s)")
    return outcome


@contextmanager
def _copy(whole: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="stepwell-mutant-") as folder:
        tree = Path(folder)
        for name in COPIED:
            if (whole / name).is_dir():
                shutil.copytree(whole / name, tree / name, ignore=LEFT_OUT)
            else:
                shutil.copy2(whole / name, tree / name)
        yield tree


def _run(tree: Path, name: str, place: str, tests: Sequence[str]) -> Outcome:
    """Run tests in a tree, and one more that checks whether the tree is sound at all."""
    begun, report = monotonic(), tree / "report.xml"
    wanted = _without_parts([*tests, SOUND])
    try:
        ended = _python(tree, "-m", "pytest", *wanted, "-q", "-p", "no:cacheprovider", f"--junitxml={report}")
    except subprocess.TimeoutExpired:
        return Outcome(name, place, 0, (), f"took longer than {TIMEOUT:.0f} s", monotonic() - begun)
    took = monotonic() - begun
    if not report.exists():
        return Outcome(name, place, 0, (), f"pytest exited with {ended.returncode}: {ended.stdout[-500:]}", took)
    passed, failed, trouble = read_report(report.read_text("utf-8"))
    return Outcome(name, place, passed, tuple(dict.fromkeys(failed)), trouble, took)


def read_report(text: str) -> tuple[int, tuple[str, ...], str]:
    """Of a JUnit report: how many tests passed, which failed by what they saw, and what makes the run worthless."""
    passed, failed, trouble = 0, [], ""
    for case in ElementTree.fromstring(text).iter("testcase"):  # noqa: S314 - written by our own pytest
        failure, error = case.find("failure"), case.find("error")
        named = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        if error is not None and error.get("message", "").startswith("failed on teardown"):
            failed.append(named)  # what a fixture looks at in the end
        elif error is not None or (failure is not None and named.startswith(SOUND_CASE)):
            trouble = f"broken: {named}"
        elif failure is None:
            passed += case.find("skipped") is None
        elif not STUMBLED.search(failure.get("message", "")):
            failed.append(named)
    return passed, tuple(failed), trouble


def _without_parts(tests: Sequence[str]) -> list[str]:
    """Each test once: a file that is listed whole includes the tests of it that are named."""
    once = dict.fromkeys(tests)
    return [test for test in once if "::" not in test or test.partition("::")[0] not in once]


def _python(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=tree, env=environment, text=True, capture_output=True, timeout=TIMEOUT,
        check=False,
    )  # fmt: skip


def _report(outcomes: Sequence[Outcome]) -> int:
    width = max(len(outcome.name) for outcome in outcomes)
    _say(f"\n{'mutation':{width}}  {'place':29}  {'result':10}  the first test that failed")
    for outcome in outcomes:
        result = f"caught, {len(outcome.failed)}" if outcome.verdict == "caught" else outcome.verdict
        first = outcome.failed[0] if outcome.failed else ""
        _say(f"{outcome.name:{width}}  {outcome.place:29}  {result:10}  {first}")
    wrong = [outcome for outcome in outcomes if outcome.verdict != "caught"]
    _say(f"{len(outcomes) - len(wrong)} of {len(outcomes)} caught")
    return 1 if wrong else 0


def _say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
