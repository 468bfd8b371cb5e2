"""Every promise on the page links to the tests that keep it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.quality.docs.pages import ROOT, prose

PAGE = ROOT / "docs" / "promises.md"
TESTS = ROOT / "tests"

_PROMISE = re.compile(r"^- \*\*(\w+)\.\*\* (.+?)(?=\n- \*\*|\n\n|\Z)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^()\s]+)\)")


@dataclass(frozen=True, slots=True)
class Promise:
    rule: str
    text: str
    tests: tuple[Path, ...]


def _promises() -> Iterator[Promise]:
    for rule, text in _PROMISE.findall(prose(PAGE)):
        yield Promise(rule, text, tuple((PAGE.parent / link).resolve() for link in _LINK.findall(text)))


@pytest.mark.parametrize("promise", list(_promises()), ids=lambda promise: f"{promise.rule}: {promise.text[:40]}")
def test_every_promise_links_to_a_file_with_a_test_of_its_rule(promise: Promise) -> None:
    assert promise.tests
    assert [str(path) for path in promise.tests if TESTS not in path.parents or not path.is_file()] == []
    assert any(f"def test_rule_{promise.rule}_" in path.read_text("utf-8") for path in promise.tests)


def test_every_rule_that_has_a_test_is_promised() -> None:
    tested = {rule for path in TESTS.rglob("test_*.py") if TESTS / "docs" not in path.parents
              for rule in re.findall(r"def test_rule_(\d+a?)_", path.read_text("utf-8"))}

    assert tested - {promise.rule for promise in _promises()} == set()
