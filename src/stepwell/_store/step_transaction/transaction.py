"""Transactions of a step and its outcome: the engine begins and ends them, the author's step uses them."""

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

IDLE_MARGIN = timedelta(seconds=10)  # after it the server ends a frozen worker's transaction, if no reaper does
LOCK_PATIENCE = timedelta(milliseconds=200)  # wait for a caller's transaction that holds the key of a child
ROW_PATIENCE = timedelta(seconds=4)  # wait for a step's row; longer if deadlock_timeout is longer
LONGEST_IDLE = 2**31 - 1  # milliseconds: the longest timeout that Postgres accepts


@dataclass(frozen=True, slots=True)
class LockWaits:
    """Timeouts of the transaction for locks."""

    usual: str  # Postgres' lock_timeout
    for_row: timedelta  # for the row of the step


class Transaction:
    """The transaction of one step and its outcome."""

    def __init__(self, carrier: Carrier, pool: Pool) -> None:
        self.ctx_connection = carrier.ctx_connection
        name = f"{__name__}.{type(self).__name__}"
        self._gaps = Gaps(name, carrier.connection.get_server_pid()) if probes.hooks else None
        self.session = Session(carrier.connection, pool, self._gaps, answer=pool.bounds.answer)
        self._pool = pool
        self.in_doubt = False  # COMMIT was sent, and no reply has arrived
        self._carrier = carrier
        self._connection = carrier.connection
        self._has_ended = False  # committed, or rolled back
        self._is_returned = False  # the connection was returned or terminated
        self._mark = self._role = ""
        self._lock_waits = LockWaits("", ROW_PATIENCE)  # read by `take_over`

    @property
    def is_lost(self) -> bool:
        """Whether its connection is lost."""
        return self._connection.is_closed()

    def check_timeline(self, era: int) -> None:
        """Raise Outage if the connection is on another timeline, or the claim is of an earlier era."""
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
        """Take the transaction over from the step; TransactionBroken if the step has ended it, or aborted it."""
        await self._carrier.write_out()
        try:
            [row] = await self.session.fetch(
                "step_transaction/take_over", self._role, self._pool.bounds.tcp()["idle_in_transaction_session_timeout"]
            )
        except Outage as error:
            if isinstance(error.__cause__, asyncpg.InFailedSQLTransactionError):
                raise TransactionBroken("the step caught an SQL error, which leaves the transaction aborted; raise "
                                        "the error, or run the statement in a savepoint") from error
            if self._connection.is_closed():
                raise
            if isinstance(error.__cause__, asyncpg.PostgresError):
                raise TransactionBroken(f"the server ended the transaction ({error}); a timeout of the step also "
                                        "applies to the engine's statements") from error
            raise TransactionBroken(f"its connection is still in use ({error}); await everything that the step "
                                    "started on it") from error
        if row["mark"] != self._mark:
            raise TransactionBroken("the step ended the transaction; return an outcome to commit, raise to roll "
                                    "back, and use a savepoint for a part of it")
        self._lock_waits = LockWaits(row["lock_timeout"], max(ROW_PATIENCE, 2 * row["deadlock_timeout"]))

    async def write(self, commit: Commit, *, is_patient: bool = False) -> CommitResult | None:
        """Write the outcome; None, with nothing changed, if the claim no longer holds, or the row is locked. With
        `is_patient`, wait for keys of children long enough for Postgres to detect a deadlock: Contention then."""
        if commit.is_plain:
            flushed = await commits.write(self.session, [commit])
            return flushed if flushed.committed else None
        try:
            with translated():
                async with self._connection.transaction():  # a savepoint, so that a failed try can be repeated
                    return await self._write_waiting(commit, self._lock_waits.for_row if is_patient else LOCK_PATIENCE)
        except NotWritten:
            return None
        except Contention as error:
            if isinstance(error.__cause__, asyncpg.DeadlockDetectedError):
                raise
            return None

    async def _write_waiting(self, commit: Commit, patience: timedelta) -> CommitResult:
        """Write an outcome with consequences; waits at most `patience` for a caller that holds the key of a child."""
        if commit.commits_alone:
            await self.session.bound_waits(patience)
        flushed = await commits.write(self.session, [commit])
        if not flushed.committed:
            raise NotWritten
        if commit.commits_alone:
            await self._restore_lock_timeout()
        return flushed

    async def await_rows(self, commit: Commit) -> None:
        """Wait for the locks of an outcome's instance and its parent, so that Postgres can detect a deadlock;
        Contention if it rolls back this transaction for that."""
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
        """Commit; raises the driver's error if the server refuses, for example because of a deferred constraint."""
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
            self._has_ended = not self.in_doubt
        if self._gaps is not None:
            await self._gaps.reach(None)

    async def rollback(self) -> bool:
        """Roll back; False if the connection was lost, which rolls back too."""
        if self._has_ended:
            return True
        self._has_ended = True
        try:
            async with asyncio.timeout(END_PATIENCE):
                await self._carrier.rollback()
        except Exception as error:  # noqa: BLE001 - the connection is terminated, and the server rolls back
            # A slow connection, or one that the author still uses, is not lost. A connection that is just being lost
            # may not know that it is closed yet, and fails with another error of the driver.
            is_alive = isinstance(error, TimeoutError | asyncpg.InterfaceError) and not self._connection.is_closed()
            await self._discard()
            return is_alive
        return not self._connection.is_closed()

    async def end(self) -> None:
        """Roll back unless it has ended, and return the connection to the pool; terminate it if that fails."""
        if self._is_returned:
            return
        try:
            async with asyncio.timeout(END_PATIENCE):
                if not self.in_doubt and await self.rollback() and not self._is_returned:
                    await self._carrier.give_back()
                    self._is_returned = True
        except Exception as error:  # noqa: BLE001 - the next step gets another connection
            log.debug("transactional: could not return a connection to its pool: %s", error)
        finally:
            await self._discard()

    async def cut(self) -> None:
        """Terminate the connection; the server rolls back."""
        self._has_ended = True
        await self._discard()

    async def _discard(self) -> None:
        if not self._is_returned:
            self._is_returned = True
            await self._carrier.discard()


def _refusal(error: BaseException | None) -> asyncpg.PostgresError | None:
    """The error of a server that refused the commit, and keeps the connection open."""
    while error is not None and not isinstance(error, asyncpg.PostgresError):
        error = error.__cause__
    return error if error is not None and getattr(error, "severity_en", None) == "ERROR" else None


async def begin(pool: Pool, mark: str, worker_id: int, longest: timedelta) -> Transaction:
    """Wait for a connection and begin a transaction on it, with a mark of the claim and the id of its worker."""
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
    """The pool for the transactions of steps, not opened."""
    if session == "asyncpg":
        return Connections(dsn, most, bounds, timelines, schema)
    try:
        from stepwell._store.step_transaction.sqlalchemy import Sessions  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise MissingExtra("sqlalchemy", "transactional_session='sqlalchemy'") from error
    return Sessions(dsn, most, bounds, timelines, schema)
