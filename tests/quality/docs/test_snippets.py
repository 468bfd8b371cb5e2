"""What the pages show runs, and prints what they say."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.conftest import MakeHarness
from tests.quality.docs.brokers import broker_for
from tests.quality.docs.pages import ROOT, blocks, needs_own_process, pages
from tests.quality.docs.snippets import run_page, run_page_apart

MOST_NOT_RUN = 3


def libpq_environment(url: str) -> dict[str, str]:
    """The variables by which other drivers than ours find the same database."""
    parts, query = urlsplit(url), dict(parse_qsl(urlsplit(url).query))
    found = {
        "PGDATABASE": parts.path[1:], "PGUSER": parts.username, "PGPASSWORD": parts.password,
        "PGHOST": query.get("host") or parts.hostname, "PGPORT": query.get("port") or parts.port,
    }  # fmt: skip
    return {name: str(value) for name, value in found.items() if value}


def _with_python() -> list[Path]:
    return [page for page in pages() if any(block.language == "python" for block in blocks(page))]


@pytest.mark.parametrize("page", _with_python(), ids=lambda page: str(page.relative_to(ROOT)))
async def test_every_python_block_runs_and_prints_what_the_page_says(
    page: Path, make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    h = await make_harness()
    monkeypatch.setenv("STEPWELL_DATABASE_URL", h.url)
    monkeypatch.chdir(tmp_path)
    with broker_for(page, tmp_path) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        await _run(page, h.url, tmp_path, monkeypatch)


async def _run(page: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if needs_own_process(page):
        for name, value in libpq_environment(url).items():
            monkeypatch.setenv(name, value)
        await run_page_apart(page, tmp_path)
    else:
        await run_page(page, tmp_path)


def test_few_python_blocks_are_skipped_and_each_has_a_reason() -> None:
    left_out = [f"{block.where}: {block.not_run}" for page in pages() for block in blocks(page) if block.not_run]

    assert len(left_out) <= MOST_NOT_RUN, left_out


def test_every_block_names_a_language_that_the_tests_know() -> None:
    known = {"", "python", "text", "console", "sql", "javascript", "markdown", "yaml"}

    unknown = [f"{block.where}: {block.language}" for page in pages() for block in blocks(page)
               if block.language not in known]

    assert unknown == []
