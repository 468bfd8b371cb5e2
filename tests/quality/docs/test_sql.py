"""The SQL on the pages runs, and the rights they grant are enough."""

from __future__ import annotations

import secrets
from urllib.parse import urlsplit, urlunsplit

import pytest

from stepwell import Done, Engine, Machine, Next, step
from tests.conftest import MakeHarness
from tests.quality.docs.pages import ROOT, Block, blocks, pages
from tests.quality.docs.test_sql_guide import named_as_here

ROLE = "shop_app"
WALKED = ROOT / "docs" / "guides" / "sql.md"  # in order, by test_sql_guide


class Ping(Machine):
    @step
    async def start(self, ctx: object) -> Next:
        return Next(self.end, concurrency_key="ping")

    @step
    async def end(self, ctx: object) -> Done:
        return Done("pong")


def _sql() -> list[Block]:
    return [block for page in pages() if page != WALKED for block in blocks(page)
            if block.language == "sql"]


def _statements(block: Block) -> list[str]:
    return [statement for statement in named_as_here(block.text).split(";\n") if statement.strip()]


@pytest.mark.parametrize("block", [b for b in _sql() if ROLE not in b.text], ids=lambda block: block.where)
async def test_every_sql_block_runs(block: Block, make_harness: MakeHarness) -> None:
    h = await make_harness()

    for statement in _statements(block):
        await h.sql(statement)


async def test_the_rights_that_the_page_grants_are_enough_for_clients_and_workers(make_harness: MakeHarness) -> None:
    h = await make_harness()
    role, password = f"shop_{secrets.token_hex(4)}", secrets.token_hex(8)
    await h.sql(f"create role {role} login password '{password}'")
    [grants] = [block for block in _sql() if ROLE in block.text]
    for statement in _statements(grants):
        await h.sql(statement.replace(ROLE, role))

    try:
        async with Engine(_url_of(h.url, role, password), machines=[Ping]) as engine, engine.worker():
            ping = await engine.start(Ping)
            result = await ping.result(timeout=30)
            owner = await h.sql("select current_user as name")
    finally:
        await h.sql(f"drop owned by {role}")
        await h.sql(f"drop role {role}")

    assert result == "pong"
    assert owner[0]["name"] != role


def _url_of(url: str, role: str, password: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{role}:{password}@{host}"))
