"""Markdown pages, read as the tests need them: fenced blocks in order, headings, links, tables.

The conventions of a page, which are all a writer has to know:

    ```python            is executed, together with the other blocks of its page, in order
    ```text              right after it is what the block prints
    # shop.py            as the first line of a python block: the block is also saved under that name, or `shop/app.py`
    # shop.yaml          as the first line of a yaml block: the block is saved under that name
    ```console           holds commands after "$ "; those of `stepwell` are parsed by the real command line
    ```sql               runs on an empty schema; those of the guide on SQL in order, through psql, with what it prints
    // pay.js            as the first line of a javascript block: node runs it, and prints the text block after it
    <!-- own process: … -->  anywhere on the page: its blocks run in a process of their own, and here is why
    <!-- not run: … -->  on the line above a python block: it is only compiled, and here is why
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]

_FENCE = re.compile(r"^( *)(`{3,}|~{3,})(.*)$")
_NOT_RUN = re.compile(r"<!-- not run: (.+?) -->")
_FILE = re.compile(r"# ([\w/]+\.(?:py|yaml))$")
_OWN_PROCESS = re.compile(r"^<!-- own process: (.+?) -->$", re.MULTILINE)
_HEADING = re.compile(r"^#{1,6} +(.+?)(?: +#+)?$")
_LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)(?: \"[^\"]*\")?\)")
_CODE = re.compile(r"`[^`\n]*`")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block: its language, its text, where it starts, and why it is not run if it is not."""

    page: Path
    line: int
    language: str
    text: str
    not_run: str | None

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The name a reader saves it under."""
        found = _FILE.match(self.text.partition("\n")[0])
        return found[1] if found else None


def pages() -> list[Path]:
    """Every page of the documentation; the decisions are records of their day and not checked."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(page for page in found if ROOT / "docs" / "decisions" not in page.parents)


def needs_own_process(page: Path) -> bool:
    """Whether the page says that its blocks cannot share a process with those of others."""
    return _OWN_PROCESS.search(page.read_text("utf-8")) is not None


@cache
def blocks(page: Path) -> tuple[Block, ...]:
    """The fenced blocks of a page, in order."""
    return tuple(_blocks(page))


def _blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text("utf-8").splitlines()
    number = 0
    while number < len(lines):
        opening = _FENCE.match(lines[number])
        number += 1
        if opening is None:
            continue
        indent, fence, language = opening.groups()
        first = number
        while number < len(lines) and lines[number].strip() != fence:
            number += 1
        if number == len(lines):
            raise AssertionError(f"{page}:{first}: the block is never closed")
        text = "".join(line.removeprefix(indent) + "\n" for line in lines[first:number])
        reason = _NOT_RUN.search(lines[first - 2]) if first > 1 else None
        yield Block(page, first, language.strip(), text, reason[1] if reason else None)
        number += 1


@cache
def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    kept, fence = [], None
    for line in page.read_text("utf-8").splitlines():
        found = _FENCE.match(line)
        if fence is None and found:
            fence = found[2]
        elif fence is None:
            kept.append(line)
        elif line.strip() == fence:
            fence = None
    return "\n".join(kept)


def links(page: Path) -> list[str]:
    """The targets of all links, code spans left out."""
    return _LINK.findall(_CODE.sub(lambda span: "`" * len(span[0]), prose(page)))


def anchors(page: Path) -> set[str]:
    """The anchors GitHub gives the headings of a page."""
    found: dict[str, int] = {}
    for line in prose(page).splitlines():
        if heading := _HEADING.match(line):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1])
            slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
            found[slug] = found.get(slug, -1) + 1
    return {slug if number == 0 else f"{slug}-{number}" for slug, most in found.items() for number in range(most + 1)}


def rows(page: Path, heading: str) -> list[list[str]]:
    """The cells of the first table under a heading, without its head."""
    _, found, rest = prose(page).partition(f"\n## {heading}\n")
    if not found:
        raise AssertionError(f"{page} has no heading {heading!r}")
    table = []
    for line in rest.splitlines():
        if line.startswith("|"):
            table.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        elif table or line.startswith("#"):
            break
    return table[2:]
