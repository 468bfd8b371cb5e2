"""The settings of a transaction that a step shares with its outcome."""

from __future__ import annotations

from datetime import timedelta

from stepwell._store.connection.pool import WORKER
from stepwell._store.connection.settings import Bounds
from stepwell._store.step_transaction import transaction as step_transaction
from stepwell._store.step_transaction.asyncpg import Connections
from stepwell._store.step_transaction.connection import STEP
from stepwell._store.step_transaction.transaction import Transaction
from stepwell.machine import MAX_TIMEOUT

# The search_path stays the author's: their deferred triggers run at the end of this transaction.
NOT_OF_A_TRANSACTION = {"application_name", "default_transaction_isolation", "search_path"}


async def shown(transaction: Transaction) -> dict[str, str]:
    return {name: await transaction.ctx_connection.fetchval("select current_setting($1)", name) for name in WORKER}


async def test_the_engines_part_of_a_transaction_plans_as_a_worker_does(url: str) -> None:
    pool = Connections(url, most=1)
    await pool.open()
    transaction = await step_transaction.begin(pool, "1:1", 7, timedelta(seconds=5))

    authors = await shown(transaction)
    await transaction.take_over()
    ours = await shown(transaction)
    await transaction.end()
    await pool.close()

    assert {name: ours[name] for name in WORKER.keys() - NOT_OF_A_TRANSACTION} == {
        name: WORKER[name] for name in WORKER.keys() - NOT_OF_A_TRANSACTION
    }
    assert (authors["enable_seqscan"], authors["enable_hashjoin"], authors["plan_cache_mode"]) == ("on", "on", "auto")
    named = {**STEP, "application_name": "stepwell step 7"}
    assert {name: authors[name] for name in named} == named


async def test_a_timeout_of_the_authors_statements_does_not_bind_the_engines(url: str) -> None:
    """A spawn of thousands may well take longer than the author lets one query take."""
    pool = Connections(url, most=1)
    await pool.open()
    transaction = await step_transaction.begin(pool, "1:1", 7, timedelta(seconds=5))

    await transaction.ctx_connection.execute("set local statement_timeout = '2s'")
    await transaction.take_over()
    ours = await transaction.ctx_connection.fetchval("show statement_timeout")
    await transaction.end()
    await pool.close()

    assert ours == "0"


async def test_a_frozen_workers_transaction_ends_soon_after_its_steps_timeout(url: str) -> None:
    """The server ends it: no transaction waits for the locks of a worker that neither works nor dies."""
    pool = Connections(url, most=1)
    await pool.open()

    transaction = await step_transaction.begin(pool, "1:1", 7, timedelta(seconds=5))
    patience = await transaction.ctx_connection.fetchval("show idle_in_transaction_session_timeout")
    await transaction.end()
    await pool.close()

    assert patience == "15s"


async def test_a_step_with_a_timeout_of_a_year_starts(url: str) -> None:
    """Postgres accepts no timeout beyond 24 days."""
    pool = Connections(url, most=1)
    await pool.open()

    transaction = await step_transaction.begin(pool, "1:1", 7, MAX_TIMEOUT)
    patience = await transaction.ctx_connection.fetchval("show idle_in_transaction_session_timeout")
    await transaction.end()
    await pool.close()

    assert patience == "2147483647ms"


async def test_a_frozen_worker_keeps_the_locks_of_an_outcome_for_its_lease_at_most(url: str) -> None:
    pool = Connections(url, most=1, bounds=Bounds.of_worker(timedelta(seconds=6)))
    await pool.open()

    transaction = await step_transaction.begin(pool, "1:1", 7, timedelta(seconds=5))
    await transaction.take_over()
    patience = await transaction.ctx_connection.fetchval("show idle_in_transaction_session_timeout")
    await transaction.end()
    await pool.close()

    assert patience == "6s"
