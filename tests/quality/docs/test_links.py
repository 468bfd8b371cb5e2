"""Links lead to existing files and headings."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.quality.docs.pages import ROOT, anchors, links, pages


def _problem(page: Path, link: str) -> str | None:
    target, _, anchor = unquote(link).partition("#")
    found = page if not target else (page.parent / target).resolve()
    if not found.exists():
        return f"{link}: there is no {found}"
    if anchor and anchor not in anchors(found):
        return f"{link}: no heading gives that anchor; there are {sorted(anchors(found))}"
    return None


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file_and_to_a_heading_in_it(page: Path) -> None:
    relative = [link for link in links(page) if not link.startswith(("https://", "http://", "mailto:"))]

    assert [problem for link in relative if (problem := _problem(page, link))] == []


def test_every_page_of_the_docs_can_be_reached_from_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    reached, todo = {index}, [index]
    while todo:
        page = todo.pop()
        for link in links(page):
            target = (page.parent / unquote(link).partition("#")[0]).resolve()
            if target.suffix == ".md" and target.exists() and target not in reached:
                reached.add(target)
                todo.append(target)

    assert [page for page in pages() if ROOT / "docs" in page.parents and page not in reached] == []
