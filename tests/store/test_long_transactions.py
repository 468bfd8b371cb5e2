"""A transaction of long statements: which timeouts are longer, and which are not."""

from __future__ import annotations

from stepwell._store.connection.pool import CLIENT, Database
from stepwell._store.connection.settings import Bounds
from tests.conftest import MakeHarness

IDLE = "idle_in_transaction_session_timeout"


async def test_a_long_transaction_allows_long_statements_but_no_long_pauses(make_harness: MakeHarness) -> None:
    h = await make_harness()
    names = ("statement_timeout", "lock_timeout", IDLE)

    async with (
        Database(h.url, session=CLIENT, bounds=Bounds(answer=5.0, idle=4.0)) as database,
        database.transaction(is_long=True) as session,
    ):
        found = {name: await session._connection.fetchval(f"show {name}") for name in names}

    assert found == {"statement_timeout": "1min", "lock_timeout": "1min", IDLE: "4s"}
