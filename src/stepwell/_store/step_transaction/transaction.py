"""Transactions that a step shares with its outcome: a pool of their own, begun and ended by us, used by the author."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import timedelta

import asyncpg

from stepwell._core.commit import Commit
from stepwell._core.store_errors import Contention, Outage
from stepwell._process import probes
from stepwell._store import operators
from stepwell._store.connection.driver_errors import kind, translated
from stepwell._store.connection.gaps import Gaps
from stepwell._store.connection.pool import Session
from stepwell._store.connection.settings import Bounds
from stepwell._store.connection.timeline import Timelines
from stepwell._store.operations import commit as commits
from stepwell._store.operations.commit import NotWritten
from stepwell._store.operations.commit_result import CommitResult
from stepwell._store.step_transaction.asyncpg import Connections
from stepwell._store.step_transaction.connection import END_PATIENCE, Carrier, Pool
from stepwell.config import SCHEMA
from stepwell.errors import MissingExtra, TransactionBroken

log = logging.getLogger("stepwell")

IDLE_MARGIN = timedelta(seconds=10)  # where no reaper ends a frozen worker's transaction, the server does so this late
LOCK_PATIENCE = timedelta(milliseconds=200)  # with a caller's open transaction that holds the key of a child
ROW_PATIENCE = timedelta(seconds=4)  # with the holder of a step's row; longer where Postgres sees cycles later
LONGEST_IDLE = 2**31 - 1  # milliseconds, that Postgres takes for a timeout

@dataclass(frozen=True, slots=True)
class LockWaits:
    """How long the transaction waits for a lock."""

    usual: str  # Postgres' lock_timeout
    for_row: timedelta  # if another transaction holds the row of the step


class Transaction:
    """The transaction of one step and its outcome."""

    def __init__(self, carrier: Carrier, pool: Pool) -> None:
        self.ctx_connection = carrier.ctx_connection
        name = f"{__name__}.{type(self).__name__}"
        self._gaps = Gaps(name, carrier.connection.get_server_pid()) if probes.hooks else None
        self.session = Session(carrier.connection, pool, self._gaps, answer=pool.bounds.answer)
        self._pool = pool
        self.in_doubt = False  # COMMIT was sent, and there is no answer
        self._carrier = carrier
        self._connection = carrier.connection
        self._is_over = False  # committed, or rolled back
        self._is_gone = False  # the connection is not ours any more
        self._mark = self._role = ""
        self._lock_waits = LockWaits("", ROW_PATIENCE)  # known once the transaction is taken over

    @property
    def is_lost(self) -> bool:
        """Whether its connection is."""
        return self._connection.is_closed()

    def check_timeline(self, era: int) -> None:
        """Refuse a connection of a timeline that the worker is not on, or a claim of an earlier one."""
        timelines = self._pool.timelines
        if timelines is not None:
            if not timelines.fits(self._connection.timeline):
                raise Outage("the connection is on a timeline that the server has left")
            timelines.check_era(era)

    async def begin(self, mark: str, worker_id: int, longest: timedelta) -> None:
        idle = min((longest + IDLE_MARGIN) // timedelta(milliseconds=1), LONGEST_IDLE)
        with translated(), self._connection.ending_after(self._pool.bounds.answer):
            first = await self._carrier.begin()
            if self._gaps is not None:
                await self._gaps.reach("step_transaction/mark")
            [row] = await first.fetch("step_transaction/mark", mark, str(idle), worker_id)
        self._mark, self._role = mark, row["role"]

    async def take_over(self) -> None:
        """Take the transaction over from the step; TransactionBroken if that is not the one it was given."""
        await self._carrier.write_out()
        try:
            [row] = await self.session.fetch(
                "step_transaction/take_over", self._role, self._pool.bounds.tcp()["idle_in_transaction_session_timeout"]
            )
        except Outage as error:
            if isinstance(error.__cause__, asyncpg.InFailedSQLTransactionError):
                raise TransactionBroken("an SQL error inside it was caught, which leaves it aborted; let the error "
                                        "through, or put the statement that may fail into a savepoint") from error
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
        self._lock_waits = LockWaits(row["lock_timeout"], max(ROW_PATIENCE, 2 * row["deadlock_timeout"]))

    async def write(self, commit: Commit, *, is_patient: bool = False) -> CommitResult | None:
        """Write the outcome; None, with nothing changed, if its row is not ours or held by somebody else just now. With
        patience, it waits so long for the keys of children that Postgres sees a cycle: Contention then."""
        if commit.is_plain:
            flushed = await commits.write(self.session, [commit])
            return flushed if flushed.committed else None
        try:
            with translated():
                async with self._connection.transaction():  # a savepoint: what comes later can be tried again
                    return await self._write_waiting(commit, self._lock_waits.for_row if is_patient else LOCK_PATIENCE)
        except NotWritten:
            return None
        except Contention as error:
            if isinstance(error.__cause__, asyncpg.DeadlockDetectedError):
                raise
            return None

    async def _write_waiting(self, commit: Commit, patience: timedelta) -> CommitResult:
        """Write an outcome on which more hangs; waits for a caller that holds the key of a child, but not longer."""
        if commit.commits_alone:
            await self.session.bound_waits(patience)
        flushed = await commits.write(self.session, [commit])
        if not flushed.committed:
            raise NotWritten
        if commit.commits_alone:
            await self._restore_lock_timeout()
        return flushed

    async def await_rows(self, commit: Commit) -> None:
        """Wait for the locks of an outcome's instance and its parent: Postgres sees a transaction that waits for this
        one in turn. Contention if it rolls back this one for that."""
        ids = [commit.claim.id] if commit.joins is None else [commit.claim.id, commit.joins]
        try:
            with translated():
                async with self._connection.transaction():
                    await self.session.bound_waits(self._lock_waits.for_row)
                    await operators.lock(self.session, ids)
                    await self._restore_lock_timeout()
        except Contention as error:
            if not isinstance(error.__cause__, asyncpg.LockNotAvailableError):
                raise

    async def _restore_lock_timeout(self) -> None:
        await self.session.run(f"set local lock_timeout = '{self._lock_waits.usual}'")

    async def commit(self) -> None:
        """Commit; the driver's own error if the server refuses, as it does for a deferred constraint."""
        if self._gaps is not None:
            await self._gaps.reach("commit")
        self.in_doubt = True
        try:
            with self._connection.ending_after(self._pool.bounds.answer):
                await self._carrier.commit()
            self.in_doubt = False
        except Exception as error:
            refusal = _refusal(error)
            self.in_doubt = self._connection.is_closed() or refusal is None
            if refusal is not None and not self.in_doubt and issubclass(kind(refusal), Outage):
                raise kind(refusal)(str(refusal)) from error
            raise
        finally:
            self._is_over = not self.in_doubt
        if self._gaps is not None:
            await self._gaps.reach(None)

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
            log.debug("transactional: a connection could not be given back: %s", error)
        finally:
            await self._discard()

    async def cut(self) -> None:
        """End the connection as it is; the server rolls back."""
        self._is_over = True
        await self._discard()

    async def _discard(self) -> None:
        if not self._is_gone:
            self._is_gone = True
            await self._carrier.discard()


def _refusal(error: BaseException | None) -> asyncpg.PostgresError | None:
    """The error by which the server itself said no, and will go on with us."""
    while error is not None and not isinstance(error, asyncpg.PostgresError):
        error = error.__cause__
    return error if error is not None and getattr(error, "severity_en", None) == "ERROR" else None


async def begin(pool: Pool, mark: str, worker_id: int, longest: timedelta) -> Transaction:
    """Wait for a connection and begin a transaction on it, marked as ours and named after its worker."""
    era = 0 if pool.timelines is None else pool.timelines.era
    with translated():
        transaction = Transaction(await pool.acquire(), pool)
    try:
        transaction.check_timeline(era)
        await transaction.begin(mark, worker_id, longest)
    except BaseException as error:
        if isinstance(error, Outage):
            await transaction.cut()
            pool.drop_idle()
        await transaction.end()
        raise
    return transaction


def transactions(
    dsn: str, session: str, most: int, bounds: Bounds, timelines: Timelines | None = None, schema: str = SCHEMA
) -> Pool:
    """The pool for the transactions of steps, not yet open."""
    if session == "asyncpg":
        return Connections(dsn, most, bounds, timelines, schema)
    try:
        from stepwell._store.step_transaction.sqlalchemy import Sessions  # noqa: PLC0415 - an extra, imported only if it is asked for
    except ImportError as error:
        raise MissingExtra("sqlalchemy", "transactional_session='sqlalchemy'") from error
    return Sessions(dsn, most, bounds, timelines, schema)
