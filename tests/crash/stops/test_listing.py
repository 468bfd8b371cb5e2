"""The listing of transactions finds each of them in the source, whatever its shape, or reports that it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell._store.connection.pool import Session
from tests.crash.stops.known import NOT_SENT, listing, transactions
from tests.crash.stops.listing import SENDERS, Known, Listing
from tests.crash.stops.source import Source

OPENS = "made.up.act"


def made_up(folder: Path, text: str, known: Known = Known()) -> Listing:  # noqa: B008 - frozen
    """The listing of a source of one module."""
    package = folder / "made"
    package.mkdir(parents=True)
    (package / "up.py").write_text(text)
    return Listing(Source(package), known)


def test_the_listing_of_the_engine_has_no_problem() -> None:
    assert listing().problems == []


def test_every_exception_names_an_existing_statement() -> None:
    listed = transactions()

    stale = {name: sorted(left) for name, sent in NOT_SENT.items() if (left := sent - listed.get(name, set()))}

    assert stale == {}


def test_the_listing_has_every_statement_that_a_session_sends() -> None:
    assert {name for name in vars(Session) if not name.startswith("_")} == {*SENDERS, "schema"}


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("await session.fetch('a/b', 1)", {"a/b"}),
        ("await session.fetch('a/b')\n        await session.copy('rows', [], b'')", {"a/b", "copy rows"}),
        ("await session.run(f'set local x = {1}')", {"set local x"}),
        ("await session.run(TEXT)", {"select 1"}),
        ("await session.run(x, name='a/script')", {"a/script"}),
        ("await session.allow(1)", {"set local statement_timeout"}),
        ("await session.bound_waits(1)", {"set local lock_timeout"}),
        ("await helper(session)", {"helped/along"}),
        ("await helper(db=session)", {"helped/along"}),
        ("await gather(partial(helper, session))", {"helped/along"}),
        ("await further(1, session)", {"helped/along"}),
        ("await again(session)", {"a/gain"}),
        ("return [await session.fetch('a/b') for _ in range(2)]", {"a/b"}),
        ("return lambda: helper(session)", {"helped/along"}),
    ],
)
def test_a_statement_is_listed_however_it_is_sent(tmp_path: Path, text: str, sent: set[str]) -> None:
    found = made_up(tmp_path, f"""
TEXT = "select 1"

async def act(db, x):
    async with db.transaction() as session:
        {text}

async def helper(db):
    await db.fetch("helped/along")

async def further(number, session):
    await helper(session)

async def again(session):
    await session.fetch("a/gain")
    await again(session)
""")

    assert found.transactions == {OPENS: sent}
    assert found.problems == []


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("async with db.transaction(anew=True) as session:", {"set local plan_cache_mode", "a/b"}),
        ("async with db.transaction(is_long=db.size > 3) as session:", {"set local statement_timeout", "a/b"}),
        ("async with other(), db.transaction() as session:", {"a/b"}),
        ("async with locked(db) as session:", {"locks/take", "a/b"}),
        ("async with twice(db) as session:", {"locks/take", "locks/again", "a/b"}),
    ],
)
def test_a_transaction_is_listed_however_it_is_entered(tmp_path: Path, text: str, sent: set[str]) -> None:
    found = made_up(tmp_path, f"""
async def act(db):
    {text}
        await session.fetch("a/b")

@asynccontextmanager
async def locked(db):
    async with db.transaction() as session:
        await session.fetch("locks/take")
        yield session

@asynccontextmanager
async def twice(db):
    async with locked(db) as session:
        await session.fetch("locks/again")
        yield session
""")

    assert found.transactions == {OPENS: sent}
    assert found.problems == []


def test_a_method_and_a_statement_under_an_if_are_listed(tmp_path: Path) -> None:
    found = made_up(tmp_path, """
if True:
    class Store:
        async def act(self):
            async with self._database.transaction() as session:
                await self._send(session)

        async def _send(self, session):
            await session.fetch("a/b")
""")

    assert found.transactions == {"made.up.Store.act": {"a/b"}}
    assert found.problems == []


@pytest.mark.parametrize(
    "text",
    [
        "session = await stack.enter_async_context(db.transaction())",
        "return db.transaction()",
        "opened = db.transaction\n    async with opened() as session:\n        pass",
        "opened = getattr(db, 'transaction')\n    async with opened() as session:\n        pass",
        "one = db.transaction()\n    await one.start()",
        "await stack.enter_async_context(locked(db))",
        "return locked(db)",
        "return one_of(locked)",
        "await connection.begin()",
        "async with connection.begin():\n        pass",
        "async with connection.begin_nested():\n        pass",
        "async with connection.transaction():\n        pass",
        "with django.atomic():\n        pass",
        "await session.run('begin')",
        "await session.run('BEGIN ISOLATION LEVEL repeatable read;')",
        "await session.run('set x = 1; start transaction')",
        "await session.run(f'commit; {x}')",
        "await session.run('commit')",
        "BEGUN = 'savepoint one'\n    await session.run(BEGUN)",
        "await session.run('rollback to one')",
        "async with db.transaction() as self.session:\n        pass",
        "async def inside():\n        async with db.transaction() as session:\n            pass",
        "with atomic():\n        pass",
        "pass\n\nopened = db.transaction()",
        "pass\n\nopened = lambda db: db.transaction()",
        "pass\n\nclass Store:\n    opened = Database.transaction",
        "pass\n\n@atomic\ndef decorated():\n    pass",
    ],
)
def test_a_transaction_opened_in_another_way_is_a_problem(tmp_path: Path, text: str) -> None:
    found = made_up(tmp_path, f"""
from django.db.transaction import atomic

async def act(self, db, connection, session, stack):
    {text}

@asynccontextmanager
async def locked(db):
    async with db.transaction() as session:
        yield session
""")

    assert found.problems, found.transactions


@pytest.mark.parametrize(
    "text",
    [
        "self.kept = session",
        "other = session",
        "return session",
        "yield session",
        "await unknown(session)",
        "await self.unknown(session)",
        "await helper(*[session])",
        "await gather([session])",
        "await session.cancel('a/b')",
        "send = session.fetch",
        "await session.fetch(name)",
        "await session.fetch('select 1')",
        "await session.fetch('a/b' if name else 'a/c')",
        "await session.run(name)",
        "await session.run(x, name=f'a/{name}')",
        "await session.copy(name, [], b'')",
    ],
)
def test_a_session_that_cannot_be_followed_is_a_problem(tmp_path: Path, text: str) -> None:
    found = made_up(tmp_path, f"""
async def act(self, db, name, x):
    async with db.transaction() as session:
        {text}

async def helper(db):
    await db.fetch("helped/along")
""")

    assert found.problems, found.transactions


@pytest.mark.parametrize(
    "text",
    [
        "await connection.execute('select 1')",
        "await connection.fetchval('select 1')",
        "await connection.fetch('select 1')",
        "await connection.fetch(statement('a/b'))",
        "await connection.executemany('select 1', [])",
        "await connection.copy_records_to_table('rows', records=[])",
        "await connection.prepare('select 1')",
        "connection.cursor('select 1')",
        "session = Session(connection, pool)",
        "return Session(connection, pool)",
    ],
)
def test_a_statement_sent_outside_a_session_is_a_problem_unless_it_is_known(tmp_path: Path, text: str) -> None:
    source = f"async def act(connection, pool):\n    {text}\n"
    known = Known(on_bare_connections={OPENS: "a test"}, makers={OPENS: "a test"})

    assert made_up(tmp_path, source).problems
    assert made_up(tmp_path / "known", source, known).problems == []


@pytest.mark.parametrize("table", ["on_the_driver", "on_bare_connections", "makers", "speakers"])
def test_exceptions_of_the_listing_must_exist(tmp_path: Path, table: str) -> None:
    source = "async def act(db):\n    pass\n"

    [problem] = made_up(tmp_path, source, Known(**{table: {"made.up.Actor.act": "it is renamed"}})).problems

    assert problem == "made.up.Actor.act: a table of the listing names it, and there is no such function"


def test_the_transaction_of_a_step_is_listed_wherever_its_session_goes(tmp_path: Path) -> None:
    found = made_up(tmp_path, """
class Transaction:
    async def begin(self):
        first = await self._carrier.begin()
        await first.fetch("marks/set")

    async def write(self):
        await self.session.bound_waits(1)
        await helper(self.session)

class Actor:
    async def act(self, transaction):
        await transaction.session.fetch("rows/verify")

async def helper(db):
    await db.fetch("helped/along")
""", Known(of_a_step="made.up.Transaction", on_the_driver={"made.up.Transaction.begin": "a test"}))

    sent = {"marks/set", "set local lock_timeout", "helped/along", "rows/verify"}
    assert found.transactions == {"made.up.Transaction": sent}
    assert found.problems == []
