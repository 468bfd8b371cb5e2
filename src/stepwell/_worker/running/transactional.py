"""Runs transactional steps: the author's writes and the outcome are committed together, or not at all.

They bypass the committer: each keeps its slot and its connection until its own commit. On failure, its transaction is
rolled back. An error of the step goes to `handle`. After a lost connection the step runs again, and the fence decides
whether a commit without a reply was applied.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from functools import partial

from stepwell._core.commit import Commit
from stepwell._core.instance import Claim
from stepwell._core.store_errors import Contention, Outage, Refusal, StoreFault
from stepwell._core.transition import run_again
from stepwell._process import probes
from stepwell._process.stats import Stats
from stepwell._store import instances
from stepwell._store.connection.pool import Database, Queryable
from stepwell._store.connection.settings import Bounds
from stepwell._store.operations import commit as commits
from stepwell._store.operations.commit_result import CommitResult
from stepwell._store.step_transaction import transaction as step_transaction
from stepwell._store.step_transaction.transaction import LOCK_PATIENCE, Transaction
from stepwell._worker.active_claims import COMMITTED, OPEN, SUBMITTED, ActiveClaim
from stepwell._worker.commit_queue import FIRST_PATIENCE, LONGEST_PATIENCE, CommitQueue, PublishesCommits
from stepwell._worker.lost_replies import is_ours
from stepwell._worker.running.step_run import Run
from stepwell.config import Settings
from stepwell.errors import InvalidOutcome, RefusedByDatabase, StepTimeout, TransactionBroken
from stepwell.machine import TRANSACTIONAL_TIMEOUT
from stepwell.outcomes import AskEach

log = logging.getLogger("stepwell")

MOST_LOST = 10  # attempts; the step itself probably causes further losses of the connection


class _Lost(Exception):
    """The transaction was rolled back, and not because of the step: its connection was lost, or it was in a deadlock.
    With a `commit`, COMMIT was sent and may have been applied."""

    def __init__(self, cause: BaseException, commit: Commit | None) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.commit = commit

    @property
    def how(self) -> str:
        """Why the transaction was rolled back."""
        if isinstance(self.cause, _Deadlocked):
            return f"a deadlock with another transaction ({self})"
        if isinstance(self.cause, _Refused):
            return f"the server refused its outcome ({self})"
        return f"its connection was lost ({self})"


class _Deadlocked(Exception):
    """Postgres has rolled back this transaction to resolve a deadlock."""


class _Refused(Exception):
    """The server refuses the outcome in any transaction, so the step is not at fault: it runs again."""


class TransactionalRunner:
    """Runs transactional steps, one at a time on each of its connections."""

    def __init__(
        self, database: Database, settings: Settings, commit_queue: CommitQueue, announcer: PublishesCommits,
        stats: Stats,
    ) -> None:  # fmt: skip
        self._pool = step_transaction.transactions(
            database.dsn, settings.transactional_session, settings.transactional_pool,
            Bounds.of_worker(settings.lease), database.timelines, database.schema,
        )  # fmt: skip
        self._database = database
        self._commit_queue = commit_queue
        self._announcer = announcer
        self._stats = stats

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close()

    async def run(self, active: ActiveClaim, run: Run) -> None:
        """Run the step and commit its outcome; on an error, roll back and raise it for `handle`."""
        longest = run.step.timeout or TRANSACTIONAL_TIMEOUT
        transaction = await self._begin(active.claim, longest)
        try:
            try:
                await self._run_in(transaction, active, run, longest)
            except _Lost as lost:
                await transaction.end()
                await self._run_again(active, lost)
        except BaseException:
            if active.stage is not COMMITTED:
                active.stage = OPEN  # not committed: the claim still holds
            raise
        finally:
            await transaction.end()

    async def _begin(self, claim: Claim, longest: timedelta) -> Transaction:
        """Wait for a connection, also through an outage: the step has not started yet."""
        begin = partial(step_transaction.begin, self._pool, f"{claim.id}:{claim.fence}", claim.worker_id, longest)
        return await self._database.outages.outlast("transactional steps", begin)

    async def _run_in(self, transaction: Transaction, active: ActiveClaim, run: Run, longest: timedelta) -> None:
        commit: Commit | None = None
        try:
            async with asyncio.timeout(longest.total_seconds()) as scope:
                commit = await self._run_step(transaction, run)
                result = await self._write(transaction, commit)
                if result is not None:
                    active.stage = SUBMITTED  # from here on the fence decides whether it is committed
                    await transaction.commit()
        except BaseException as error:
            if active.abandoned:
                raise
            if transaction.in_doubt:
                raise _Lost(error, commit) from error
            is_alive = await transaction.rollback()
            if isinstance(error, TimeoutError) and scope.expired():
                raise StepTimeout(run.claim.machine, run.step.name, longest) from None
            is_step_error = is_alive or isinstance(error, TransactionBroken)
            if isinstance(error, Outage | _Deadlocked | _Refused) or not is_step_error:
                raise _Lost(error, None) from error
            raise
        if result is None:
            await self._drop_stale(transaction, active.claim, commit)
        else:
            active.stage = COMMITTED
            await self._publish(commit, result)

    async def _run_step(self, transaction: Transaction, run: Run) -> Commit:
        if probes.hooks:
            await probes.reach("transactional.begun", id=run.claim.id)
        ctx = run.context(transaction.ctx_connection)
        outcome = await run.step.function(run.definition.owner.object, ctx)
        if isinstance(outcome, AskEach):
            raise InvalidOutcome("outcome", "a transactional step cannot return Ask.each, which needs transactions of "
                                 "its own; return Next to a plain step that asks")
        commit = run.commit(outcome, ctx)
        if probes.hooks:
            await probes.reach("transactional.returned", id=run.claim.id)
        await transaction.take_over()
        return commit

    async def _write(self, transaction: Transaction, commit: Commit) -> CommitResult | None:
        """Write the outcome; None if its claim no longer holds. While another transaction holds the row, retry; after
        some tries, wait for the lock, so that Postgres can detect a deadlock."""
        pause = FIRST_PATIENCE
        while True:
            try:
                result = await transaction.write(commit, is_patient=pause == LONGEST_PATIENCE)
                if result is not None:
                    break
                if not await _is_still_ours(transaction.session, commit):
                    return None
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PATIENCE)
                if pause == LONGEST_PATIENCE:
                    await transaction.await_rows(commit)
            except Refusal as error:
                self._stats.refused += 1
                raise RefusedByDatabase(str(error)) from error
            except Contention as error:
                raise _Deadlocked(str(error)) from error
            except Outage as error:
                if transaction.is_lost:
                    raise
                raise await self._judge(transaction, commit, error) from error
        if probes.hooks:
            await probes.reach("transactional.written", id=commit.claim.id)
        return result

    async def _judge(self, transaction: Transaction, commit: Commit, error: Outage) -> Exception:
        """The error for an outcome that failed: the server's fault (_Refused), or the step's (RefusedByDatabase)."""
        if not await self._takes(transaction, commit):
            return _Refused(str(error))
        self._stats.refused += 1  # fails in this transaction only: the step changed its rights or its mode
        return RefusedByDatabase(str(error))

    async def _takes(self, transaction: Transaction, commit: Commit) -> bool:
        """Whether the server accepts the same outcome in a transaction of the engine: then the step's transaction is at
        fault. Another statement would prove nothing: a single table, or a right on it, may be missing."""
        if not await transaction.rollback():
            return False
        try:
            return await commits.takes(self._database, commit, lock_timeout=LOCK_PATIENCE)
        except Refusal:
            return True
        except StoreFault:
            return False

    async def _publish(self, commit: Commit, result: CommitResult) -> None:
        if probes.hooks:
            await probes.reach("transactional.committed", id=commit.claim.id)
        self._stats.committed += 1
        self._announcer.committed([commit], result)

    async def _drop_stale(self, transaction: Transaction, claim: Claim, commit: Commit) -> None:
        await transaction.rollback()
        if await _is_still_ours(self._database, commit):  # so the step has changed the row in this transaction
            raise TransactionBroken("the step cancelled or restarted its own instance in its transaction; return "
                                    "Stop or Next instead")
        self._stats.stale += 1
        self._announcer.stale(commit)
        log.warning("transactional: %s: stale, its claim no longer holds", claim.label)

    async def _run_again(self, active: ActiveClaim, lost: _Lost) -> None:
        """Run the step again; the fence prevents it if the transaction was committed."""
        is_server_fault = isinstance(lost.cause, _Refused)
        if active.claim.attempt >= MOST_LOST and lost.commit is None and not is_server_fault:
            raise TransactionBroken(f"it was rolled back at every attempt: {lost.how}; a timeout of the database for "
                                    "sessions or transactions may end it, or a statement of the step")
        if active.abandoned:  # its claim is lost; another worker may have the row
            return
        if isinstance(lost.cause, _Deadlocked):
            log.warning("transactional: %s: %s; the step runs again", active.claim.label, lost.how)
        else:  # an outage is logged once, not for each step
            self._database.outages.failed_once("transactional steps", Outage(f"{active.claim.label}: {lost.how}"))
        active.stage = SUBMITTED
        await self._commit_queue.submit(run_again(active.claim, lost.cause), in_doubt=lost.commit)


async def _is_still_ours(database: Queryable, commit: Commit) -> bool:
    return is_ours(commit.claim, (await instances.verify(database, [commit.claim.id])).get(commit.claim.id))
