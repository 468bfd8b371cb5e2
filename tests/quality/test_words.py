"""Which words are counted as metaphors, and where they stand for themselves."""

from __future__ import annotations

import re

import pytest

from tests.quality.words import BANNED, in_words, without_allowed


def counted(word: str, text: str, path: str = "src/stepwell/engine.py") -> int:
    return len(re.findall(rf"\b{BANNED[word]}\b", without_allowed(word, path, in_words(text))))


@pytest.mark.parametrize(("word", "text", "count"), [
    ("hand", "class OpenHands: in_hand = hand", 3),
    ("hand", "started by hand, and handed over", 0),
    ("line", "rows wait in line behind a key: instances_in_limit_line", 2),
    ("line", "the command line, `deadline` and text.splitlines()", 0),
    ("line", "three lines of the log", 0),
    ("far side", "far_sides, FarSide", 2),
])  # fmt: skip
def test_banned_word_is_counted_where_it_is_a_metaphor(word: str, text: str, count: int) -> None:
    assert counted(word, text) == count


def test_lines_of_a_yaml_file_are_no_metaphor() -> None:
    assert counted("line", "section.line", "src/stepwell/pipelines/sections.py") == 0
