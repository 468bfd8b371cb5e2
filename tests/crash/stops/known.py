"""The transactions of the engine; the exceptions of its listing, and the statements that are never sent."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import stepwell
from stepwell._store.migrate import migrations
from tests.crash.stops.listing import Known, Listing
from tests.crash.stops.source import Source

OF_A_STEP = "stepwell._store.step_transaction.transaction.Transaction"
THE_TEST_KIT = frozenset({"testing"})
APPLY = "stepwell._store.migrate.apply"

_LENT = "one SQL function each, in the transaction of a caller"
_STORE = "stepwell._store."
_STEP = _STORE + "step_transaction.transaction.Transaction."
KNOWN = Known(
    on_the_driver={
        _STORE + "connection.pool.Database.transaction": "it is what all others are opened by",
        _STORE + "connection.server_check.check_pooler": "it locks nothing: it asks which server processes answer",
        _STORE + "connection.driver_errors.begun_transaction": "the block around BEGIN and COMMIT, for the two above",
        _STEP + "begin": "the transaction of a step",
        _STEP + "write": "a savepoint in the transaction of a step",
        _STEP + "await_rows": "a savepoint in the transaction of a step",
        _STORE + "step_transaction.asyncpg._Borrowed.__init__": "the transaction of a step, by asyncpg",
        _STORE + "step_transaction.sqlalchemy._Session.begin": "the transaction of a step, by SQLAlchemy",
        "stepwell.contrib.django.tasks.backend.StepwellBackend._start": "Django's, around one SQL function",
    },
    on_bare_connections={
        _STORE + "connection.pool.Session.fetch": "all sessions send by it",
        _STORE + "connection.pool.Session.run": "all sessions send by it",
        _STORE + "connection.pool.Session.copy": "all sessions send by it",
        _STORE + "connection.pool.Database.fetch": "one statement on its own",
        _STORE + "connection.server_check.check_version": "no transaction: what the server is",
        _STORE + "connection.server_check.check_kept": "no transaction: what the session has",
        _STORE + "connection.server_check.check_pooler": "which server processes answer",
        _STORE + "connection.settings.SettledConnection.settle": "no transaction: the settings of a new connection",
        _STORE + "connection.dark_connections._is_at_work": "no transaction: one look on a connection of its own",
        _STORE + "step_transaction.sqlalchemy._First.fetch": "begin has the gap before it",
        _STORE + "drivers.asyncpg._Connection.fetch": _LENT,
        _STORE + "drivers.django._Connection.fetch": _LENT,
        _STORE + "drivers.psycopg._AsyncConnection.fetch": _LENT,
        _STORE + "drivers.psycopg._Connection.fetch": _LENT,
        _STORE + "drivers.sqlalchemy._AsyncConnection.fetch": _LENT,
        _STORE + "drivers.sqlalchemy._Connection.fetch": _LENT,
        _STORE + "drivers.sql_functions.start_many": _LENT,
        _STORE + "drivers.sql_functions.signal_many": _LENT,
        _STORE + "drivers.sql_functions.cancel": _LENT,
        "stepwell.sync.relay.Relay._send": _LENT,
        "stepwell.contrib.django.operations._migrate": "in the transaction of Django's own migration",
        "stepwell.contrib.django.tasks.results.read_instance": "one read on its own",
    },
    makers={
        _STORE + "connection.pool.Database.connection": "for statements that are each on their own",
        _STORE + "connection.pool.Database.listening": "for statements that are each on their own",
        _STORE + "connection.pool.Database.transaction": "for who opens a transaction",
        _STEP + "__init__": "the session of a step's transaction",
        _STORE + "step_transaction.asyncpg._Borrowed.begin": "for the first statement of a step's transaction",
    },
    speakers={
        _STORE + "connection.gaps.Gaps.__init__": "the name of a gap",
        _STORE + "migrate.script": "for those who run their SQL by hand",
    },
    scripts={"rendered(migration.sql, db.schema)": frozenset(f"migrations/{one.version:04}" for one in migrations())},
    of_a_step=OF_A_STEP,
)


@cache
def listing() -> Listing:
    """The listing of the engine; the test kit is no part of it."""
    return Listing(Source(Path(stepwell.__file__).parent, THE_TEST_KIT), KNOWN)


def transactions() -> dict[str, set[str]]:
    """The statements of each transaction of the engine, by the full name of the function that opens it."""
    return listing().transactions


# Statements that a transaction could send by its source, and never sends, or sends in the same order elsewhere.
_BARE = {
    "children/settle", "instances/find_tombstoned", "instances/start", "concurrency_keys/admit",
    "concurrency_keys/lock", "limits/admit_waiting",
    "limits/lock", "signals/consume", "signals/drop", "signals/recheck", "children/start_fast", "await_units/close",
    "await_units/drop_items", "await_units/open",
}  # fmt: skip
_OF_ITEMS = {"concurrency_keys/admit", "concurrency_keys/lock", "limits/admit_waiting", "limits/lock"}
NOT_SENT = {
    # The full path never sends the statement of the fast path.
    "stepwell._store.operations.commit._commit_full": {"instances/commit_fast"},
    # A simple row has no key, no children, no signal to consume, and asks nothing; its slots are released afterwards.
    "stepwell._store.operations.commit._commit_fast": _BARE,
    # A transactional step has no Ask.each, is no item, and its outcome never takes the fast path.
    OF_A_STEP: {"instances/commit_fast", "await_units/close", "await_units/drop_items", "await_units/settle"},
    # An answer, and a retry, end no unit early, so that no items are cancelled by it.
    "stepwell._store.operations.complete._complete_full": {"await_units/drop_items"},
    "stepwell._store.operations.complete._complete_waiting": {"await_units/drop_items"},
    "stepwell._store.operators.retry": {"await_units/drop_items"},
    # A tree of more than a page is found by more reads; the writes after them are the same.
    "stepwell._store.operators.cancel": {"operators/find_children", "operators/find_items"},
    # Slots that cancelled items held are passed on in the same order when an operator cancels their pipeline.
    "stepwell._store.interactions._expire": _OF_ITEMS,
    "stepwell._store.interactions.fail": {*_OF_ITEMS, "await_units/drop_items"},
    "stepwell._store.await_units._repair": _OF_ITEMS,
    # With a key: neither the statement for uniform batches without keys, nor that for signals to ids.
    "stepwell._client.signal.SignalOperations._signal_or_start_once": {"instances/start_fast", "signals/deliver_fast"},
}
RARE = {"instances/undo_start"}  # only if a pruner deletes a key's holder between two statements: test_prune_races.py


def missed(passed: dict[str, set[str]]) -> list[str]:
    """What no scenario covers, each with a remedy; `passed`: statements by transaction."""
    problems = []
    for name, statements in transactions().items():
        left = statements - NOT_SENT.get(name, set()) - RARE - passed.get(name, set())
        if name not in passed:
            problems.append(f"{name} opens a transaction that no scenario passes through; add one to "
                            "tests/crash/stops/worker_plays.py or client_plays.py, with this name in its `of`")
        elif left:
            problems.append(f"{name} sends {', '.join(sorted(left))}, and no scenario lets it; extend one that has it "
                            "in its `of` (tests/crash/stops), or say in NOT_SENT why it never does")
    return problems
