"""The settings of a transaction that a step shares with its outcome."""

from __future__ import annotations

from datetime import timedelta

from stepwell._store import transactions
from stepwell._store.database import WORKER
from stepwell._store.transactions import STEP, Connections, Transaction

NOT_OF_A_TRANSACTION = {"application_name", "default_transaction_isolation"}


async def shown(transaction: Transaction) -> dict[str, str]:
    return {name: await transaction.handed.fetchval("select current_setting($1)", name) for name in WORKER}


async def test_our_part_of_it_plans_as_a_worker_does_and_the_authors_as_usual(url: str) -> None:
    pool = Connections(url, most=1)
    await pool.open()
    transaction = await transactions.begin(pool, "1:1", timedelta(seconds=5))

    authors = await shown(transaction)
    await transaction.seal()
    ours = await shown(transaction)
    await transaction.end()
    await pool.close()

    assert {name: ours[name] for name in WORKER.keys() - NOT_OF_A_TRANSACTION} == {
        name: WORKER[name] for name in WORKER.keys() - NOT_OF_A_TRANSACTION
    }
    assert (authors["enable_seqscan"], authors["enable_hashjoin"], authors["plan_cache_mode"]) == ("on", "on", "auto")
    assert {name: authors[name] for name in STEP} == STEP


async def test_a_timeout_for_the_authors_statements_is_none_for_ours(url: str) -> None:
    """A spawn of thousands may well take longer than the author lets one query take."""
    pool = Connections(url, most=1)
    await pool.open()
    transaction = await transactions.begin(pool, "1:1", timedelta(seconds=5))

    await transaction.handed.execute("set local statement_timeout = '2s'")
    await transaction.seal()
    ours = await transaction.handed.fetchval("show statement_timeout")
    await transaction.end()
    await pool.close()

    assert ours == "0"


async def test_a_frozen_workers_transaction_ends_soon_after_the_time_of_its_step(url: str) -> None:
    """The server ends it: nobody waits for the locks of a worker that neither works nor dies."""
    pool = Connections(url, most=1)
    await pool.open()

    transaction = await transactions.begin(pool, "1:1", timedelta(seconds=5))
    patience = await transaction.handed.fetchval("show idle_in_transaction_session_timeout")
    await transaction.end()
    await pool.close()

    assert patience == "15s"
