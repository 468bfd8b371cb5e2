"""Group commit: if idle, an outcome is committed at once; if busy, the next commit has all that came meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta

from stepwell._core.commit import Commit
from stepwell._core.instance import Claim
from stepwell._core.status import Status
from stepwell._core.store_errors import Contention, Misfit, Outage, Refusal, StoreFault
from stepwell._process import probes
from stepwell._process.service import STOP_GRACE, Service
from stepwell._process.stats import Stats
from stepwell._store import instances, signals
from stepwell._store.connection.pool import Database
from stepwell._store.operations.commit import CommitPaths, commit
from stepwell._store.operations.commit_result import CommitResult
from stepwell._worker.commit_queue import AT_ONCE, LONGEST_PATIENCE, CommitFuture
from stepwell._worker.committing.announcer import Announcer
from stepwell._worker.committing.child_slots import ChildSlots
from stepwell._worker.committing.isolation import Isolation
from stepwell._worker.committing.limit_slots import SlotReleases
from stepwell._worker.committing.queued_commit import QueuedCommit, mark_in_doubt
from stepwell._worker.lost_replies import COMMITTED, GOES_ON, Verdict, is_ours, judge
from stepwell.errors import RefusedByDatabase

log = logging.getLogger("stepwell")

LARGEST_BATCH = 1_000
LARGEST_TEXT = 16_000_000  # characters of states, results and errors in one batch
MOST_APART = 4  # connections of the worker that may wait for foreign transactions
APART_PATIENCE = timedelta(milliseconds=200)


class Committer(Service):
    """Commits outcomes in batches. One bad row never fails its neighbours, and an outage loses none."""

    def __init__(
        self, database: Database, announcer: Announcer, stats: Stats,
        *, name: str = "committer", child_slots: ChildSlots | None = None, most_rows: int = LARGEST_BATCH,
    ) -> None:  # fmt: skip
        super().__init__(name)
        self._child_slots = child_slots
        self._most_rows = most_rows
        self._database = database
        self._announcer = announcer
        self._stats = stats
        self._pending: list[QueuedCommit] = []
        self._text = 0  # characters of what is pending; retries are not counted
        self._alone: set[asyncio.Task[None]] = set()
        self._apart = asyncio.Semaphore(MOST_APART)
        self._leftovers: list[int] = []  # ended instances whose inboxes are to be deleted
        self.slot_releases = SlotReleases(database, announcer, self)
        self._sweeping: asyncio.Task[None] | None = None
        self._is_over = False
        self._paths = CommitPaths()
        self._isolation = Isolation(self)
        self._flying = 0  # commits that the current tick has taken

    def start(self, after: float | None = 0.0) -> None:
        self._make_answer = asyncio.get_running_loop().create_future  # to ask for the loop each time costs as much
        super().start(after)

    async def stop(self) -> None:
        await super().stop()
        if self._sweeping is not None:
            await asyncio.wait([self._sweeping], timeout=STOP_GRACE)

    def ended(self) -> None:
        """Cancel futures whose commit will not come."""
        self._is_over = True
        for entry in self._pending:
            entry.answer.cancel()
        self._pending = []  # an entry refers to this object, and the garbage collector does not see it
        for task in (*self._alone, *self.slot_releases.tasks):
            task.cancel()

    @property
    def waiting(self) -> int:
        """Outcomes submitted and not yet durable."""
        return len(self._pending) + self._flying

    @property
    def is_over_budget(self) -> bool:
        """Whether what waits in memory is more text than two commits take: then nothing should be added."""
        return self._text > 2 * LARGEST_TEXT

    def submit(self, commit: Commit, *, in_doubt: Commit | None = None) -> asyncio.Future[Verdict]:
        """Commit an outcome; the future raises RefusedByDatabase if Postgres refuses it.

        `in_doubt` is an earlier commit whose reply was lost: this outcome replaces it, unless that one has landed.
        """
        answer = self._make_answer()
        self._put(QueuedCommit(commit, answer, in_doubt, commit.length))
        return answer

    def take_over(self, commit: Commit, answer: CommitFuture) -> None:
        """Commit an outcome that no task waits for."""
        self._put(QueuedCommit(commit, answer, None, commit.length))

    def _put(self, entry: QueuedCommit) -> None:
        if self._is_over:
            raise asyncio.CancelledError
        self._pending.append(entry)
        self._text += entry.length
        if not self._woken:
            self.wake()

    async def tick(self) -> float | None:
        batch = self._next_batch()
        batch = self._one_per_row([entry for entry in batch if not entry.answer.cancelled()])
        batch = self._without_lone(batch)
        if not batch:
            return 0.0 if self._pending else await self.slot_releases.make()
        self._flying = len(batch)
        self._isolation.start_tick()
        try:
            if probes.hooks:
                await probes.reach("committer.before_commit", ids=[e.commit.claim.id for e in batch])
            await self.commit_batch(batch)
        except BaseException as error:
            unanswered = [entry for entry in batch if entry.is_open]
            self._keep(unanswered, doubtful=isinstance(error, Outage))
            raise
        finally:
            self._flying = 0
        again = await self.slot_releases.make()
        return 0.0 if self._pending else again

    def _next_batch(self) -> list[QueuedCommit]:
        """The first outcomes that fit into one statement; each child of a spawn counts as a row."""
        batch, text, rows = self._pending[:LARGEST_BATCH], 0, 0
        for number, entry in enumerate(batch):
            children = entry.commit.children
            rows += 1 if children is None else len(children)
            if (text + entry.length > LARGEST_TEXT or rows > self._most_rows) and number:
                batch = batch[:number]
                break
            text += entry.length
        self._pending = self._pending[len(batch) :]
        self._text = max(self._text - text, 0) if self._pending else 0
        return batch

    def _one_per_row(self, batch: list[QueuedCommit]) -> list[QueuedCommit]:
        """Keep a row's next outcome for later while the reply to the one before it is lost: in one statement, the
        consequences of the first would be written again on what the second has left of the row."""
        if len({entry.commit.claim.id for entry in batch}) == len(batch):
            return batch
        first: dict[int, QueuedCommit] = {}
        for entry in batch:
            first.setdefault(entry.commit.claim.id, entry)
        self._pending = [entry for entry in batch if first[entry.commit.claim.id] is not entry] + self._pending
        return list(first.values())

    def _without_lone(self, batch: list[QueuedCommit]) -> list[QueuedCommit]:
        """Commit some spawns apart: keys may wait for a caller's open transaction, and many children take long."""
        others = []
        for entry in batch:
            if not (entry.is_apart or entry.commit.commits_alone):
                others.append(entry)
                continue
            alone = asyncio.create_task(self._commit_alone(entry), name="stepwell spawn")
            self._alone.add(alone)
            alone.add_done_callback(self._alone.discard)
        return others

    async def _commit_alone(self, entry: QueuedCommit) -> None:
        try:
            async with self._apart:
                if probes.hooks:
                    await probes.reach("committer.before_commit", ids=[entry.commit.claim.id])
                await self.commit_batch([entry], APART_PATIENCE)
        except StoreFault as error:
            self._database.outages.failed_once(f"{self.name} of {entry.commit.claim.label}", error)
            if isinstance(error, Outage):
                mark_in_doubt(entry)
            self.bring_again(entry)

    def _keep(self, entries: list[QueuedCommit], *, doubtful: bool) -> None:
        """Put entries back first: an outage loses no outcome."""
        if doubtful:
            for entry in entries:
                mark_in_doubt(entry)
        self._pending = entries + self._pending

    async def commit_batch(self, batch: list[QueuedCommit], lock_timeout: timedelta | None = None) -> None:
        if any(entry.answer.cancelled() for entry in batch):  # since the tick began
            batch = [entry for entry in batch if not entry.answer.cancelled()]
            if not batch:
                return
        try:
            result = await self._send([entry.commit for entry in batch], lock_timeout)
        except (Refusal, Contention) as error:
            await self._isolation.isolate(batch, error)
            return
        except Misfit as error:
            await self._isolation.separate(batch, error)
            return
        rest: list[QueuedCommit] = []
        if result.rest:
            ids = {commit.claim.id for commit in result.rest}
            rest = [entry for entry in batch if entry.commit.claim.id in ids]
            batch = [entry for entry in batch if entry.commit.claim.id not in ids]
        if batch:
            self._sweep_soon(result.leftovers)
            self.slot_releases.add(result.slots)
            if result.is_as_meant:
                await self._note_as_meant(batch, result.freed_queues)
            else:
                await self._note(batch, result)
        if rest:
            if batch and probes.hooks:
                await probes.reach("committer.before_commit", ids=[entry.commit.claim.id for entry in rest])
            await self.commit_batch(rest)

    async def _send(self, commits: list[Commit], lock_timeout: timedelta | None) -> CommitResult:
        """Commit, with reserved slots for children if there are any."""
        reserved = None if self._child_slots is None else self._child_slots.reserve(commits)
        inserted_claimed: Sequence[Claim] = ()
        try:
            result = await commit(
                self._database, commits, self._paths, lock_timeout=lock_timeout, reserved=reserved
            )
            inserted_claimed = result.inserted_claimed
        finally:
            if reserved is not None and self._child_slots is not None:
                self._child_slots.settle(reserved, inserted_claimed)
        return result

    async def _note(self, batch: list[QueuedCommit], result: CommitResult) -> None:
        """Tell the verdicts of committed entries, and settle the others."""
        if probes.hooks:
            await probes.reach("committer.committed", ids=[row.id for row in result.committed])
        rows = {row.id: row for row in result.committed}
        self._announcer.committed([entry.commit for entry in batch], result)
        answered, missing = [], []
        for entry in batch:
            row = rows.get(entry.commit.claim.id)
            if row is None:
                missing.append(entry)
            else:
                entry.verdict = GOES_ON if row.status is Status.EXECUTING else COMMITTED
                answered.append(entry)
        self._stats.committed += len(answered)
        self._tell(answered)
        if missing:
            await self._settle(missing)

    async def _note_as_meant(self, batch: list[QueuedCommit], freed_queues: list[str]) -> None:
        """Tell the verdicts of a batch that is committed whole, without other consequences than freed parents."""
        if probes.hooks:
            await probes.reach("committer.committed", ids=[entry.commit.claim.id for entry in batch])
        self._announcer.as_meant([entry.commit for entry in batch])
        self._announcer.may_run(freed_queues)
        for entry in batch:
            entry.verdict = GOES_ON if entry.commit.goes_on else COMMITTED
        self._stats.committed += len(batch)
        self._tell(batch)

    def _sweep_soon(self, inboxes: list[int]) -> None:
        self._leftovers += inboxes
        if inboxes and (self._sweeping is None or self._sweeping.done()):
            self._sweeping = asyncio.create_task(self._sweep(), name="stepwell sweep")

    async def _sweep(self) -> None:
        """Delete the inboxes of ended instances in the background; what an outage leaves is pruned."""
        while self._leftovers:
            dropped, self._leftovers = self._leftovers, []
            try:
                await signals.sweep(self._database, dropped)
            except StoreFault as error:
                log.debug("committer: %d inboxes stay until they are pruned: %s", len(dropped), error)

    def _tell(self, answered: list[QueuedCommit]) -> None:
        """Resolve the futures that wait, some at a time."""
        for entry in answered[:AT_ONCE]:
            try:
                if not entry.answer.done():
                    entry.answer.set_result(entry.verdict or COMMITTED)
            except Exception:  # the other futures are resolved all the same
                log.exception("committer: %s: its answer could not be told", entry.commit.claim.label)
        if len(answered) > AT_ONCE:
            asyncio.get_running_loop().call_soon(self._tell, answered[AT_ONCE:])

    def keep_misfit(self, entry: QueuedCommit, error: Misfit) -> None:
        self._database.outages.failed_once(f"{self.name} of {entry.commit.claim.label}", error)
        self.bring_again(entry)

    def refuse(self, entry: QueuedCommit, error: StoreFault) -> None:
        self._stats.refused += 1
        log.warning("committer: %s: refused by the database: %s", entry.commit.claim.label, error)
        if not entry.answer.done():
            entry.answer.set_exception(RefusedByDatabase(str(error)))

    async def _settle(self, entries: list[QueuedCommit]) -> None:
        """Find out about outcomes that were not committed: landed before, locked, or of a lost claim."""
        traces = await instances.verify(self._database, [entry.commit.claim.id for entry in entries])
        for entry in entries:
            trace = traces.get(entry.commit.claim.id)
            if is_ours(entry.commit.claim, trace):
                self.bring_again(entry)
            else:
                self._conclude(entry, Verdict.UNKNOWN if entry.is_repeated else judge(entry.in_doubt, trace))

    def _conclude(self, entry: QueuedCommit, verdict: Verdict) -> None:
        """Tell the verdict of a commit whose claim no longer has its row."""
        claim = entry.commit.claim
        if verdict is Verdict.STALE:
            log.warning("committer: %s: stale, its claim is no longer ours", claim.label)
            self._announcer.stale(entry.commit)
        elif verdict is Verdict.UNKNOWN:
            log.warning("committer: %s: its answer was lost, and others have gone on since", claim.label)
        elif verdict is Verdict.COMMITTED:
            self._announcer.applied(entry.in_doubt or entry.commit)
        self._answer(entry, verdict)
        if verdict is not Verdict.STALE and claim.concurrency_limit is not None:
            self.slot_releases.add([claim.concurrency_limit])  # no waiting row may have been admitted for it

    def bring_again(self, entry: QueuedCommit) -> None:
        """Try again soon: a foreign transaction has locked the row, and no batch waits for it."""
        pause, entry.patience = entry.patience, min(entry.patience * 2, LONGEST_PATIENCE)
        entry.is_resting = True

        def again() -> None:
            entry.is_resting = False
            if self._is_over:
                entry.answer.cancel()
                return
            self._pending.append(entry)
            self.wake()

        asyncio.get_running_loop().call_later(pause, again)

    def _answer(self, entry: QueuedCommit, verdict: Verdict) -> None:
        if verdict is Verdict.STALE:
            self._stats.stale += 1
        elif verdict is not Verdict.UNKNOWN:
            self._stats.committed += 1
        entry.verdict = verdict
        self._tell([entry])
