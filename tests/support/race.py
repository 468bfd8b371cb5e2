"""Two connections and the store's own statements, driven step by step."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, Self

import asyncpg

from stepwell import Context, Done, Machine, Next, step
from stepwell._core.commit import Commit, Values
from stepwell._core.instance import Claim
from stepwell._core.status import Status
from stepwell._store import instances
from stepwell._store.connection.pool import PLAN_ANEW, WORKER
from stepwell._store.connection.sql_files import statement
from stepwell._store.operations import commit
from stepwell._store.operations.claim import Claimed, claim_fast, claim_full, claim_started_fast
from stepwell._store.registrations import workers
from stepwell._store.registrations.workers import HostIdentity, StartedClaims
from stepwell.testing import Harness
from tests.support.claims import request
from tests.support.commits import full_path
from tests.support.waiting import eventually

LEASE = timedelta(hours=1)
NOWHERE = HostIdentity("nowhere", "never", 1, "1")


class Plain(Machine, initial="a"):
    """Two steps; the second one finds in the state what the first one wrote."""

    @step
    async def a(self, ctx: Context[Any]) -> Next:
        return Next(self.b, state={"by": "a"})

    @step
    async def b(self, ctx: Context[Any]) -> Done:
        return Done(ctx.state)


class Session:
    """One connection, in place of the store's database. A statement can be changed, to show what it is good for."""

    schema = "stepwell"
    era = 0  # its server stays on one timeline

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self._changed: dict[str, str] = {}
        self.sent: list[tuple[str, tuple[object, ...], list[asyncpg.Record]]] = []  # statements with their results
        self._transaction: Any = None

    def change(self, name: str, *changes: tuple[str, str]) -> Self:
        """Send a statement with parts of its text replaced."""
        text = statement(name)
        for old, new in changes:
            assert old in text, f"{name} has no {old!r} any more"
            text = text.replace(old, new)
        self._changed[name] = text
        return self

    def check_era(self, era: int) -> None:
        assert era == self.era

    async def fetch(self, name: str, *args: object) -> list[asyncpg.Record]:
        rows = list(await self.connection.fetch(self._changed.get(name) or statement(name), *args))
        self.sent.append((name, args, rows))
        return rows

    def answers(self, *names: str) -> list[list[asyncpg.Record]]:
        """The results of these statements so far, in order."""
        return [rows for name, _, rows in self.sent if name in names]

    @asynccontextmanager
    async def transaction(self, *, anew: bool = False, is_long: bool = False) -> AsyncIterator[Self]:
        async with self.connection.transaction():
            if anew:
                await self.run(PLAN_ANEW)
            yield self

    async def run(self, sql: str) -> None:
        await self.connection.execute(sql)

    async def begin(self) -> None:
        self._transaction = self.connection.transaction()
        await self._transaction.start()

    async def commit(self) -> None:
        await self._transaction.commit()

    async def roll_back(self) -> None:
        await self._transaction.rollback()

    async def lock_row(self, instance_id: int, strength: str = "no key update") -> None:
        await self.connection.execute(f"select from stepwell.instances where id = $1 for {strength}", instance_id)


class Race:
    """A test's database, sessions on it, and which session waits for which."""

    def __init__(self, harness: Harness, stack: AsyncExitStack) -> None:
        self.harness = harness
        self._stack = stack
        self._labels = [f"{d.name}@{d.version}" for d in harness.engine._registry.all()]

    async def session(self) -> Session:
        connection = await asyncpg.connect(self.harness.url, server_settings=WORKER)
        self._stack.push_async_callback(connection.close)
        return Session(connection)

    async def worker(self, session: Session, labels: Sequence[str] | None = None) -> int:
        """Register a worker without a process, on a host of its own."""
        return (await workers.register(session, NOWHERE, "0", {}, self._labels if labels is None else labels, LEASE)).id

    async def claim(self, session: Session, worker_id: int, limit: int = 100) -> Claimed:
        return await claim_full(session, request(worker_id, limit, self._labels))

    async def claim_fast(self, session: Session, worker_id: int) -> Claimed:
        return await claim_fast(session, request(worker_id, 100, self._labels))

    async def claim_started(self, session: Session, worker_id: int) -> Claimed:
        return await claim_started_fast(session, request(worker_id, 100, self._labels))

    async def begin(self, session: Session, claims: Sequence[Claim]) -> StartedClaims | None:
        """Mark claims started; returns their states."""
        latest = max(claim.claimed_at for claim in claims)
        return await workers.mark_started(session, latest, [], claims)

    async def end_lease(self, worker_id: int) -> None:
        await self.harness.sql("update stepwell.workers set lease_until = '-infinity' where id = $1", worker_id)

    async def reap(self, session: Session, claims: Sequence[Claim]) -> list[int]:
        """Reap those claims that may be; returns the ids."""
        reaped, _ = await instances.reap(session, [(c.id, c.concurrency_key, c.parent_id) for c in claims], 10)  # type: ignore[arg-type]
        return [row.id for row in reaped]

    async def flush(self, session: Session, commits: Sequence[Commit]) -> list[int]:
        """Commit outcomes; returns the ids that committed."""
        flushed = await commit.commit(session, commits, full_path())  # type: ignore[arg-type]  # a session does for a database
        return [row.id for row in flushed.committed]

    async def row(self, instance_id: int, *columns: str) -> tuple[Any, ...]:
        [row] = await self.harness.sql(
            f"select {', '.join(columns)} from stepwell.instances join stepwell.instance_data using (id) where id = $1",
            instance_id,
        )
        return tuple(row)

    async def blocked(self, session: Session, call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a call and wait until the server reports that it waits for a lock."""
        pid = session.connection.get_server_pid()
        task = asyncio.create_task(call)
        await eventually(lambda: self.harness.sql("select from pg_locks where pid = $1 and not granted", pid))
        assert not task.done()
        return task

    async def awaiting_claims(self, session: Session, call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a call and wait until it waits for the end of running claims."""
        task = asyncio.create_task(call)
        await eventually(lambda: len(session.answers("queues/find_claiming")) > 1)
        assert not task.done()
        return task

    async def is_anybody_waiting(self) -> bool:
        return bool(
            await self.harness.sql(
                "select from pg_locks l join pg_stat_activity a using (pid) "
                "where not l.granted and a.datname = current_database()"
            )
        )


def following(claim: Claim, state: str | None = '{"by": "a"}') -> Commit:
    """The commit of step a."""
    return Commit(
        claim=claim, status=Status.RUNNABLE, step="b", version=claim.version, attempt=0, values=Values(state=state)
    )  # fmt: skip


def done(claim: Claim, result: str = '"done"') -> Commit:
    """The commit of Done(result)."""
    return Commit(
        claim=claim, status=Status.DONE, step=claim.step, version=claim.version, attempt=claim.attempt,
        values=Values(result=result),
    )  # fmt: skip
