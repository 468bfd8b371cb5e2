"""Runs transactional steps: the author's writes and the outcome are committed together, or not at all.

They do not go through the flusher: each keeps its slot and its connection until its own commit. What can not be
committed is rolled back; an error of the step goes to `handle`, a lost connection lets the step run again, and the
fence decides whether a commit without an answer has landed.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

from stepwell import _probes
from stepwell._core.commits import Commit
from stepwell._core.faults import Outage, Refusal, StoreFault
from stepwell._core.records import Claim
from stepwell._core.transition import again
from stepwell._runtime.announcer import Announcer
from stepwell._runtime.flusher import FIRST_PATIENCE, LONGEST_PATIENCE, Flusher
from stepwell._runtime.hands import Hand
from stepwell._runtime.landing import is_ours
from stepwell._runtime.runs import Run
from stepwell._runtime.tally import Tally
from stepwell._store import instances, transactions
from stepwell._store.database import Database, Queryable
from stepwell._store.flushes import Flushed
from stepwell._store.transactions import Pool, Transaction
from stepwell.errors import InvalidOutcome, RefusedByDatabase, StepTimeout, TransactionBroken
from stepwell.machine import TRANSACTIONAL_TIMEOUT
from stepwell.outcomes import AskEach

log = logging.getLogger("stepwell")

MOST_LOST = 10  # attempts; after so many, a connection that is lost again is no accident
LONGEST_PAUSE = 5.0  # between tries to begin while the database is away


class _Lost(Exception):
    """The connection is gone, and with it the transaction, unless its COMMIT had come through."""

    def __init__(self, cause: BaseException, commit: Commit | None) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.commit = commit


class Transactor:
    """Runs one transactional step after the other on each of its connections."""

    def __init__(
        self, *, pool: Pool, database: Database, flusher: Flusher, announcer: Announcer, tally: Tally
    ) -> None:
        self._pool = pool
        self._database = database
        self._flusher = flusher
        self._announcer = announcer
        self._tally = tally

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close()

    async def run(self, hand: Hand, run: Run) -> None:
        """Run the step and commit its outcome; raises what `handle` is to see, with everything rolled back."""
        longest = run.step.timeout or TRANSACTIONAL_TIMEOUT
        transaction = await self._begin(hand.claim, longest)
        try:
            await self._run_in(transaction, hand, run, longest)
        except _Lost as lost:
            await transaction.end()
            await self._run_again(hand, lost)
        finally:
            hand.submitted = False
            await transaction.end()

    async def _begin(self, claim: Claim, longest: timedelta) -> Transaction:
        """Wait for a connection, also through an outage: nothing of the step has happened yet."""
        pause = FIRST_PATIENCE
        while True:
            try:
                return await transactions.begin(self._pool, f"{claim.id}:{claim.fence}", longest)
            except StoreFault as error:
                log.warning("transactions: %s: can not begin yet: %s", claim.label, error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _run_in(self, transaction: Transaction, hand: Hand, run: Run, longest: timedelta) -> None:
        commit: Commit | None = None
        try:
            async with asyncio.timeout(longest.total_seconds()) as scope:
                commit = await self._run_step(transaction, run)
                flushed = await self._write(transaction, commit)
                if flushed is not None:
                    hand.submitted = True  # from here on the fence decides
                    await transaction.commit()
        except BaseException as error:
            if hand.abandoned:
                raise
            if transaction.in_doubt:
                raise _Lost(error, commit) from error
            is_alive = await transaction.rollback()
            if isinstance(error, TimeoutError) and scope.expired():
                raise StepTimeout(run.claim.machine, run.step.name, longest) from None
            if isinstance(error, Outage) or not (is_alive or isinstance(error, TransactionBroken)):
                raise _Lost(error, None) from error
            raise
        if flushed is None:
            await self._drop_stale(transaction, hand.claim, commit)
        else:
            await self._tell(commit, flushed)

    async def _run_step(self, transaction: Transaction, run: Run) -> Commit:
        if _probes.hooks:
            await _probes.reach("transactions.begun", id=run.claim.id)
        ctx = run.context(transaction.handed)
        outcome = await run.step.function(run.definition.owner, ctx)
        if isinstance(outcome, AskEach):
            raise InvalidOutcome("outcome", "a transactional step can not Ask.each, which has transactions of its own; "
                                 "go on at a plain step that asks")
        commit = run.commit(outcome, ctx)
        if _probes.hooks:
            await _probes.reach("transactions.returned", id=run.claim.id)
        await transaction.seal()
        return commit

    async def _write(self, transaction: Transaction, commit: Commit) -> Flushed | None:
        """Write the outcome; None if its claim is no longer ours. Waits while a foreign transaction holds its row."""
        pause = FIRST_PATIENCE
        while True:
            try:
                flushed = await transaction.write(commit)
            except Refusal as error:
                self._tally.refused += 1
                raise RefusedByDatabase(str(error)) from error
            if flushed is not None:
                if _probes.hooks:
                    await _probes.reach("transactions.written", id=commit.claim.id)
                return flushed
            if not await _is_still_ours(transaction.session, commit):
                return None
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PATIENCE)

    async def _tell(self, commit: Commit, flushed: Flushed) -> None:
        if _probes.hooks:
            await _probes.reach("transactions.committed", id=commit.claim.id)
        self._tally.committed += 1
        self._announcer.committed([commit], flushed)

    async def _drop_stale(self, transaction: Transaction, claim: Claim, commit: Commit) -> None:
        await transaction.rollback()
        if await _is_still_ours(self._database, commit):  # so it was the step's own transaction that took it away
            raise TransactionBroken("the step cancelled or restarted its own instance in it; return Stop, "
                                    "or Next, instead")
        self._tally.stale += 1
        self._announcer.stale(commit)
        log.warning("transactions: %s: stale, its claim is no longer ours", claim.label)

    async def _run_again(self, hand: Hand, lost: _Lost) -> None:
        """Let the step run again, unless its transaction has landed after all: then the fence has grown."""
        if hand.claim.attempt >= MOST_LOST and lost.commit is None:
            raise TransactionBroken(f"its connection was lost at every attempt ({lost}); a timeout of the database for "
                                    "sessions or transactions may end it, or a statement of the step itself")
        log.warning("transactions: %s: its connection is lost (%s); it runs again", hand.claim.label, lost)
        hand.submitted = True
        await self._flusher.submit(again(hand.claim, lost.cause), doubted=lost.commit)


async def _is_still_ours(database: Queryable, commit: Commit) -> bool:
    return is_ours(commit.claim, (await instances.verify(database, [commit.claim.id])).get(commit.claim.id))
