"""The guide on SQL, followed from its first line to its last: psql, a trigger, Node."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from stepwell.embedded import installed
from stepwell.embedded.account import Account
from stepwell.embedded.programs import programs
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.quality.docs.pages import ROOT, Block, blocks
from tests.quality.docs.snippets import run_page
from tests.quality.docs.test_console import PATIENCE

GUIDE = ROOT / "docs" / "guides" / "sql.md"
NODE_PATH = ("/usr/share/nodejs", str(ROOT / ".venv" / "node" / "usr" / "share" / "nodejs"))  # Debian's, .ci/run's


async def run(*words: str | Path, given: str = "", folder: Path | None = None, **environment: str) -> tuple[int, str]:
    """Run a program to its end; returns its code and all that it printed, without blanks at the ends of lines."""
    process = await asyncio.create_subprocess_exec(
        *words, stdin=PIPE, stdout=PIPE, stderr=STDOUT, cwd=folder, env={**os.environ, **environment}
    )
    async with asyncio.timeout(PATIENCE):
        output, _ = await process.communicate(given.encode())
    assert process.returncode is not None
    return process.returncode, "".join(f"{line.rstrip()}\n" for line in output.decode().strip("\n").splitlines())


def psql() -> Path | str:
    return programs(Account.of_the_server()) / "psql" if installed() else shutil.which("psql") or ""


def shown(of: Block) -> str | None:
    """The text block right after a block: what it prints."""
    found = blocks(GUIDE)
    following = found[found.index(of) + 1 :][:1]
    return following[0].text if following and following[0].language == "text" else None


def named_as_here(sql: str) -> str:
    """The role of a database that is called `shop`, as it is called in all databases of tests."""
    return sql.replace("stepwell_client_shop", "stepwell_client")


async def type_in(h: Harness, block: Block) -> None:
    """Let psql run a block, and compare what it prints with the page, if the page shows it."""
    database = urlsplit(h.url).path.strip("/")
    code, printed = await run(
        psql(), "--no-psqlrc", "--set=SHOW_CONTEXT=never", h.url,
        given=named_as_here(block.text).replace("billing", f"{database}_b"),
    )

    expected = shown(block)
    if expected is not None:
        assert printed == expected, block.where
    else:
        assert "ERROR" not in printed or "create role stepwell_client" in block.text, f"{block.where}: {printed}"
    assert code == 0, printed


@pytest.fixture
async def h(make_harness: MakeHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """A database that knows the app of the page, which is saved as shop.py."""
    harness = await make_harness()
    monkeypatch.setenv("STEPWELL_DATABASE_URL", harness.url)
    monkeypatch.chdir(tmp_path)
    await run_page(GUIDE, tmp_path)
    code, printed = await run(sys.executable, "-m", "stepwell", "migrate", "--app", "shop:engine", folder=tmp_path)
    assert code == 0, printed
    return harness


async def test_the_sql_guide_can_be_followed_with_psql_a_trigger_and_node(h: Harness, tmp_path: Path) -> None:
    reason = await no_node()
    try:
        for block in blocks(GUIDE):
            if block.language == "sql":
                await type_in(h, block)
            elif block.language == "javascript" and reason is None:
                await run_script(h, block, tmp_path)
        await insert_with_a_driver(h)
        started = await h.sql("select key, status, has_inbox from stepwell.instances where key is not null order by id")
    finally:
        await h.sql(f"drop role if exists {urlsplit(h.url).path.strip('/')}_b")

    by_key = {row["key"]: (row["status"], row["has_inbox"]) for row in started}
    assert by_key["order:42"] == ("cancelled", True)
    assert by_key["order:43"] == ("runnable", False)
    assert by_key["order:44"] == ("runnable", True)
    assert {"order:1001", "order:2000", "order:46", "order:50"} <= by_key.keys()
    assert "order:51" not in by_key
    assert len(by_key) == 1005 + (reason is None)
    if reason is not None:
        pytest.skip(reason)
    assert by_key["order:45"] == ("runnable", True)


async def insert_with_a_driver(h: Harness) -> None:
    """The trigger works for clients that do not know of it; a rollback undoes its start."""
    connection = await asyncpg.connect(h.url)
    await connection.execute("insert into orders values ($1, $2)", 50, "Edsger")
    transaction = connection.transaction()
    await transaction.start()
    await connection.execute("insert into orders values ($1, $2)", 51, "Alan")
    await transaction.rollback()
    await connection.close()


async def run_script(h: Harness, block: Block, folder: Path) -> None:
    """Save a block as the page says and let node run it."""
    name = block.text.partition("\n")[0].removeprefix("// ")
    (folder / name).write_text(block.text, "utf-8")

    code, printed = await run("node", name, folder=folder, DATABASE_URL=h.url, NODE_PATH=":".join(NODE_PATH))

    assert (code, printed) == (0, shown(block))


async def no_node() -> str | None:
    """Why the example for Node cannot run here."""
    packages = "the example for Node needs node and its driver: apt install nodejs node-pg"
    if shutil.which("node") is None:
        return packages
    code, printed = await run("node", "-e", "require('pg')", NODE_PATH=":".join(NODE_PATH))
    return None if code == 0 else f"{packages} ({printed.splitlines()[-1] if printed else code})"
