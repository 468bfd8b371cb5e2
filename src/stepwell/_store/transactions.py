"""Transactions that a step shares with its outcome: a pool of their own, begun and ended by us, used by the author."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any, Final, Protocol

import asyncpg

from stepwell._core.commits import Commit
from stepwell._core.faults import Contention, Outage, Refusal
from stepwell._store import flushes
from stepwell._store.database import Queryable, Session, close_pool, meet_types
from stepwell._store.flushes import Flushed
from stepwell._store.translation import translated
from stepwell._store.types import LearnedConnection
from stepwell.errors import EngineClosed, MissingExtra, TransactionBroken

log = logging.getLogger("stepwell")

# The author's queries are planned as on any other connection; only the isolation is ours.
STEP: Final = {"application_name": "stepwell step", "default_transaction_isolation": "read committed"}

BEGIN_PATIENCE = 20.0
END_PATIENCE = 5.0  # with a rollback or a reset, before the connection is cut instead
IDLE_MARGIN = timedelta(seconds=10)  # the server ends a frozen worker's transaction this long after the step's time
LOCK_PATIENCE = timedelta(milliseconds=200)  # with a caller's open transaction that holds the key of a child

# What the driver's own reset leaves: another role, and temporary tables.
_ALSO_RESET = "\nSET SESSION AUTHORIZATION DEFAULT;\nRESET ROLE;\nDISCARD TEMP;"


class StepConnection(LearnedConnection):
    """A connection that is handed to authors, and comes back as it was."""

    is_altered = False
    """Whether its codecs were changed, which no reset undoes."""
    is_lent = False
    """Whether a step has it: closing it is not the step's to do."""

    @property
    def bare(self) -> StepConnection:
        """Itself, also through the pool's stand-in, which answers nothing more once the connection is lost."""
        return self

    def get_reset_query(self) -> str:
        return super().get_reset_query() + _ALSO_RESET

    async def close(self, *, timeout: float | None = None) -> None:
        if self.is_lent:
            raise TransactionBroken("close() was called in the step; "
                                    "the connection is given back when the step is over")
        await super().close(timeout=timeout)

    async def set_type_codec(self, *args: Any, **options: Any) -> None:
        self.is_altered = True
        await super().set_type_codec(*args, **options)

    async def set_builtin_type_codec(self, *args: Any, **options: Any) -> None:
        self.is_altered = True
        await super().set_builtin_type_codec(*args, **options)

    async def reset_type_codec(self, *args: Any, **options: Any) -> None:
        self.is_altered = True
        await super().reset_type_codec(*args, **options)


class Carrier(Protocol):
    """A connection out of a pool and the transaction on it, as one driver has them."""

    handed: Any  # what the step finds in ctx.connection

    @property
    def connection(self) -> asyncpg.Connection:
        """The driver's connection, for our own statements."""
        ...

    async def begin(self) -> Queryable:
        """Begin; what the first statement is to be sent through."""
        ...

    async def write_out(self) -> None:
        """Send what the author wrote and the driver has kept in memory."""
        ...

    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...

    async def give_back(self) -> None:
        """Reset the connection and return it to its pool."""
        ...

    async def discard(self) -> None:
        """Cut the connection: the server undoes what is open."""
        ...


class Pool(Protocol):
    """Where transactions of steps come from."""

    statements: int

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    async def acquire(self) -> Carrier:
        """Wait for a connection."""
        ...


class Transaction:
    """The transaction of one step and its outcome."""

    def __init__(self, carrier: Carrier, pool: Pool) -> None:
        self.handed = carrier.handed
        self.session = Session(carrier.connection, pool)
        self.in_doubt = False  # COMMIT was sent, and there is no answer
        self._carrier = carrier
        self._connection = carrier.connection
        self._is_over = False  # committed, or rolled back
        self._is_gone = False  # the connection is not ours any more
        self._mark = self._role = self._lock_timeout = ""

    async def begin(self, mark: str, longest: timedelta) -> None:
        idle = (longest + IDLE_MARGIN) // timedelta(milliseconds=1)
        with translated():
            async with asyncio.timeout(BEGIN_PATIENCE):
                first = await self._carrier.begin()
                [row] = await first.fetch("transactions/mark", mark, str(idle))
        self._mark, self._role = mark, row["role"]

    async def seal(self) -> None:
        """Take the transaction over from the step; TransactionBroken if that is not the one it was given."""
        await self._carrier.write_out()
        try:
            [row] = await self.session.fetch("transactions/seal", self._role)
        except Refusal as error:
            if isinstance(error.__cause__, asyncpg.InFailedSQLTransactionError):
                raise TransactionBroken("an SQL error inside it was caught, which leaves it aborted; let the error "
                                        "through, or put the statement that may fail into a savepoint") from error
            raise
        except Outage as error:
            if self._connection.is_closed():
                raise
            if isinstance(error.__cause__, asyncpg.PostgresError):
                raise TransactionBroken(f"the server stopped it ({error}); a timeout that the step sets holds for our "
                                        "part of it too") from error
            raise TransactionBroken(f"its connection is still in use ({error}); await everything that the step "
                                    "began on it") from error
        if row["mark"] != self._mark:
            raise TransactionBroken("the step ended it; return an outcome to commit, raise to roll back, "
                                    "and use a savepoint for a part of it")
        self._lock_timeout = row["lock_timeout"]

    async def write(self, commit: Commit) -> Flushed | None:
        """Write the outcome; None, with nothing changed, if its row is not ours or held by somebody else just now."""
        if commit.is_plain:
            flushed = await flushes.write(self.session, [commit])
            return flushed if flushed.committed else None
        try:
            with translated():
                async with self._connection.transaction():  # a savepoint: what comes later can be tried again
                    return await self._write_waiting(commit)
        except (_NotWritten, Contention):
            return None

    async def _write_waiting(self, commit: Commit) -> Flushed:
        """Write an outcome on which more hangs; waits for a caller that holds the key of a child, but not long."""
        if commit.spawns_keys:
            await self.session.bound_waits(LOCK_PATIENCE)
        flushed = await flushes.write(self.session, [commit])
        if not flushed.committed:
            raise _NotWritten
        if commit.spawns_keys:
            await self.session.run(f"set local lock_timeout = '{self._lock_timeout}'")
        return flushed

    async def commit(self) -> None:
        """Commit; the driver's own error if the server refuses, as it does for a deferred constraint."""
        self.in_doubt = True
        try:
            await self._carrier.commit()
            self.in_doubt = False
        except Exception as error:
            self.in_doubt = self._connection.is_closed() or not _is_refusal(error)
            raise
        finally:
            self._is_over = not self.in_doubt

    async def rollback(self) -> bool:
        """Undo everything; False if the connection was lost, which undoes it too."""
        if self._is_over:
            return True
        self._is_over = True
        try:
            async with asyncio.timeout(END_PATIENCE):
                await self._carrier.rollback()
        except Exception as error:  # noqa: BLE001 - whatever it is, the connection is cut, and the server rolls back
            # Slow, or still in use by the author: that is no loss. A connection that is just being lost may not know
            # that it is closed yet, and fails with an error of the driver's own.
            is_alive = isinstance(error, TimeoutError | asyncpg.InterfaceError) and not self._connection.is_closed()
            await self._discard()
            return is_alive
        return not self._connection.is_closed()

    async def end(self) -> None:
        """Roll back what is open, and give the connection back; cut it if that does not work."""
        if self._is_gone:
            return
        try:
            async with asyncio.timeout(END_PATIENCE):
                if not self.in_doubt and await self.rollback() and not self._is_gone:
                    await self._carrier.give_back()
                    self._is_gone = True
        except Exception as error:  # noqa: BLE001 - whatever it is, the next step gets another connection
            log.debug("transactions: a connection could not be given back: %s", error)
        finally:
            await self._discard()

    async def _discard(self) -> None:
        if not self._is_gone:
            self._is_gone = True
            await self._carrier.discard()


class _NotWritten(Exception):
    """The row of an outcome was not ours to write."""


def _is_refusal(error: BaseException | None) -> bool:
    """Whether the server itself said no, and will go on with us."""
    while error is not None:
        if isinstance(error, asyncpg.PostgresError):
            return getattr(error, "severity_en", None) == "ERROR"
        error = error.__cause__
    return False


async def begin(pool: Pool, mark: str, longest: timedelta) -> Transaction:
    """Wait for a connection and begin a transaction on it, marked as ours."""
    with translated():
        transaction = Transaction(await pool.acquire(), pool)
    try:
        await transaction.begin(mark, longest)
    except BaseException:
        await transaction.end()
        raise
    return transaction


def transactions(dsn: str, session: str, most: int) -> Pool:
    """The pool for the transactions of steps, not yet open."""
    if session == "asyncpg":
        return Connections(dsn, most)
    try:
        from stepwell._store.sessions import Sessions  # noqa: PLC0415 - an extra, imported only if it is asked for
    except ImportError as error:
        raise MissingExtra("sqlalchemy", "transactional_session='sqlalchemy'") from error
    return Sessions(dsn, most)


class Connections:
    """A pool whose transactions hand out the driver's own connections."""

    def __init__(self, dsn: str, most: int) -> None:
        self.statements = 0
        self._dsn = dsn
        self._most = most
        self._pool: asyncpg.Pool | None = None

    async def open(self) -> None:
        """Open the pool; it connects when the first step comes."""
        self._pool = await asyncpg.create_pool(
            self._dsn, min_size=0, max_size=self._most, connection_class=StepConnection, server_settings=STEP,
            timeout=20, init=meet_types,
        )  # fmt: skip

    async def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            await close_pool(pool)

    async def acquire(self) -> Carrier:
        if self._pool is None:
            raise EngineClosed
        return _Borrowed(self, self._pool, await self._pool.acquire())


class _Borrowed:
    """A connection of an asyncpg pool."""

    def __init__(self, owner: Connections, pool: asyncpg.Pool, lent: Any) -> None:
        self.handed = lent
        self.connection: StepConnection = lent.bare
        self._owner = owner
        self._pool = pool
        self._transaction = self.connection.transaction()

    async def begin(self) -> Queryable:
        await self._transaction.start()
        self.connection.is_lent = True
        return Session(self.connection, self._owner)

    async def write_out(self) -> None:
        """The driver keeps nothing back: all there is to do is to take the connection back."""
        self.connection.is_lent = False

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        self.connection.is_lent = False
        await self._transaction.rollback()

    async def give_back(self) -> None:
        self.connection.is_lent = False
        if self.connection.is_altered:
            await self.connection.close(timeout=END_PATIENCE)
        await self._pool.release(self.handed, timeout=END_PATIENCE)

    async def discard(self) -> None:
        self.connection.is_lent = False
        self.connection.terminate()
        await self._pool.release(self.handed)
