"""Every scenario of the digest of the pipeline framework's await units, 1 to 83, is named by some test."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[2]
FOLDERS = (
    "features/interactions", "features/pipelines", "crash/interactions", "crash/pipelines", "features/transports",
    "surfaces/web",
)  # fmt: skip
NAMED = re.compile(r"Scenarios? (\d+(?:(?:, | and | to )\d+)*)")
ALONE = re.compile(r'"""(\d+(?:(?:, | and | to )\d+)*)[:.]')  # in files that say so at their top


def numbers(text: str) -> set[int]:
    """The numbers in "2 to 5 and 9"."""
    spans = ((int(a), int(b or a)) for a, b in re.findall(r"(\d+)(?: to (\d+))?", text))
    return {number for first, last in spans for number in range(first, last + 1)}


def test_every_scenario_has_a_test_that_names_it() -> None:
    told: set[int] = set()
    for path in (path for folder in FOLDERS for path in (TESTS / folder).rglob("*.py")):
        text = path.read_text("utf-8")
        named = NAMED.findall(text)
        if "scenarios in the digest" in text:
            named += ALONE.findall(text)
        told = told.union(*map(numbers, named))

    assert set(range(1, 84)) - told == set()
