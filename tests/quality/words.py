"""Words that are metaphors in this library, counted where they stand for a thing of it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from tests.quality.figure import ROOT, SOURCE, Figure

# Names are read word by word: HandOver and hand_over are both "hand over".
BANNED = {
    "hand": r"hands?",
    "line": r"lines?",
    "door": r"doors?",
    "reception": r"receptions?",
    "nursery": r"nurser(?:y|ies)",
    "lane": r"lanes?",
    "world": r"worlds?",
    "far side": r"far sides?",
}


class Allowed(NamedTuple):
    word: str
    paths: str  # a pattern of paths, relative to the repository
    context: str  # a regular expression of the word and what is around it, in what `in_words` makes of the text
    reason: str
    has: str = ""  # a regular expression that a file has to match somewhere


ANY_LINE = r"lines?"
ALLOWED = (
    Allowed("hand", "*", r"by hand|(?:left|right)[ -]hand|second[ -]hand", "done by a person; a side"),
    Allowed("world", "*", r"hello,? world", "the greeting"),
    Allowed("door", "src/stepwell/errors.py", r"self[ .]door|\bdoor\b", "public attributes of two errors"),
    Allowed("nursery", "*.md", r"trio(?:'s)? (?:has )?nurser(?:y|ies)", "the name of a thing in trio"),
    Allowed("line", "*", r"command[ -]lines?", "the command line"),
    Allowed("line", "*", r"lines? (?:\d+|of (?:the |an? |its |this |one |our )?(?:log|logs|code|text|file|output|source"
            r"|yaml|python|sql|table|page|traceback|ascii|module))", "lines of text"),
    Allowed("line", "*", r"(?:log|blank|empty|new|white|source|read|write|split|print) lines?", "lines of text"),
    Allowed("line", "src/stepwell/pipelines/*", ANY_LINE, "lines of YAML files, of drawings"),
    Allowed("line", "src/stepwell/_cli/*", ANY_LINE, "lines of output"),
    Allowed("line", "src/stepwell/embedded/*", ANY_LINE, "lines of postmaster.pid and of the server's log"),
    Allowed("line", "src/stepwell/*outages.py", ANY_LINE, "lines of the log"),
    Allowed("line", "src/stepwell/transports/*", ANY_LINE, "lines of text, in a header"),
    Allowed("line", "src/stepwell/web/refusal_log.py", ANY_LINE, "lines of the log"),
    Allowed("far side", "src/stepwell/testing/*", r"far sides?", "the public names FarSide and far_side"),
    Allowed("line", "src/stepwell/testing/*", ANY_LINE, "lines of reports, and of what processes print"),
    Allowed("line", "tests/*", ANY_LINE, "lines of text",
            has=r"splitlines|readlines?\b|\.stdout|caplog|capsys|\.lineno"),
)  # fmt: skip
UNREAD = {Path(__file__), SOURCE / "_store" / "schema.sql"}  # lists the words; is made from the migrations
WHO = re.compile(r"\b(?:who|whom|whose|whoever)\b", re.IGNORECASE)
AREAS = {
    "src, Python": ("src", "*.py"),
    "src, SQL": ("src", "*.sql"),
    "tests": ("tests", "*.py"),
    "docs": (".", "*.md"),
}


def in_words(text: str) -> str:
    """The text with its names taken apart, with the same line breaks: HandOver -> hand over."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", text).replace("_", " ").lower()


def texts(area: str) -> Iterator[tuple[str, str]]:
    """Path and text of the files of an area."""
    folder, pattern = AREAS[area]
    for path in sorted((ROOT / folder).rglob(pattern)):
        inside = path.relative_to(ROOT)
        if path not in UNREAD and not any(part.startswith(".") for part in inside.parts):
            yield inside.as_posix(), path.read_text()


def without_allowed(word: str, name: str, text: str) -> str:
    for one in ALLOWED:
        if one.word == word and fnmatch(name, one.paths) and (not one.has or re.search(one.has, text)):
            text = re.sub(rf"\b(?:{one.context})\b", lambda found: re.sub(r"[^\n]", "·", found.group()), text)
    return text


def banned_places() -> Iterator[tuple[str, str, str]]:
    """Area, word and place of each banned word, in names of files too."""
    for area in AREAS:
        for name, text in texts(area):
            whole, lines = in_words(text), text.splitlines()
            for word, pattern in BANNED.items():
                regex = re.compile(rf"\b{pattern}\b")
                if regex.search(in_words(Path(name).stem)):
                    yield area, word, f"{name}: its name"
                if regex.search(whole):
                    for number, line in enumerate(without_allowed(word, name, whole).splitlines(), 1):
                        for _ in regex.finditer(line):
                            yield area, word, f"{name}:{number}: {lines[number - 1].strip()}"


def in_areas(counts: Counter[str]) -> str:
    return ", ".join(f"{n} in {area}" for area, n in counts.items())


def banned_words() -> Figure:
    places = list(banned_places())
    areas = Counter(area for area, _, _ in places)
    in_src = Counter(word for area, word, _ in places if area.startswith("src"))
    return Figure(
        "banned words in src", str(in_src.total()), "0", not in_src,
        [f"{word}: {place}" for _, word, place in places],
        (", ".join(f"{word} {n}" for word, n in in_src.most_common()), in_areas(areas)),
    )  # fmt: skip


def who_words() -> Figure:
    places = [
        (area, f"{name}:{number}: {line.strip()}")
        for area in AREAS
        for name, text in texts(area)
        for number, line in enumerate(text.splitlines(), 1)
        for _ in WHO.finditer(line)
    ]
    areas = Counter(area for area, _ in places)
    in_src = sum(n for area, n in areas.items() if area.startswith("src"))
    return Figure(
        "who, whom, whose, whoever in src", str(in_src), "0 but of people", in_src == 0, [place for _, place in places],
        (in_areas(areas),),
    )  # fmt: skip
