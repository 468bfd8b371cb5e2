"""Two connections and the store's own statements, driven step by step: how races are told in tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, Self

import asyncpg

from stepwell import Context, Done, Machine, Next, step
from stepwell._core.commits import Commit
from stepwell._core.records import Claim
from stepwell._core.status import Status
from stepwell._store import flushes, instances, shortcuts, workers
from stepwell._store.database import PLAN_ANEW, WORKER
from stepwell._store.instances import Claimed
from stepwell._store.statements import statement
from stepwell._store.workers import Begun, Place
from stepwell.testing import Harness
from tests.support.waiting import eventually

LEASE = timedelta(hours=1)


class Plain(Machine, initial="a"):
    """Two steps; the second one finds in the state what the first one wrote."""

    @step
    async def a(self, ctx: Context[Any]) -> Next:
        return Next(self.b, state={"by": "a"})

    @step
    async def b(self, ctx: Context[Any]) -> Done:
        return Done(ctx.state)


class Session:
    """One connection, in the place of the store's database. A statement can be changed, to show what it is good for."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection
        self._changed: dict[str, str] = {}
        self._transaction: Any = None

    def change(self, name: str, *changes: tuple[str, str]) -> Self:
        """Send a statement with parts of its text replaced."""
        text = statement(name)
        for old, new in changes:
            assert old in text, f"{name} has no {old!r} any more"
            text = text.replace(old, new)
        self._changed[name] = text
        return self

    async def fetch(self, name: str, *args: object) -> list[asyncpg.Record]:
        return list(await self.connection.fetch(self._changed.get(name) or statement(name), *args))

    @asynccontextmanager
    async def transaction(self, *, anew: bool = False) -> AsyncIterator[Self]:
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
    """A test's database, sessions on it, and who waits for whom."""

    def __init__(self, harness: Harness, stack: AsyncExitStack) -> None:
        self.harness = harness
        self._stack = stack
        self._labels = [f"{d.name}@{d.version}" for d in harness.engine._registry.all()]

    async def session(self) -> Session:
        connection = await asyncpg.connect(self.harness.url, server_settings=WORKER)
        self._stack.push_async_callback(connection.close)
        return Session(connection)

    async def worker(self, session: Session, labels: Sequence[str] | None = None) -> int:
        """Enter a worker that no process stands for, on a host of its own."""
        place = Place("nowhere", "never", 1, "1")
        return await workers.register(session, place, "0", {}, self._labels if labels is None else labels, LEASE)

    async def claim(self, session: Session, worker_id: int, limit: int = 100) -> Claimed:
        return await instances.claim(session, worker_id, "default", limit, self._labels)

    async def claim_bare(self, session: Session, worker_id: int) -> Claimed:
        claims, is_all = await shortcuts.claim_bare(session, worker_id, "default", 100, self._labels, [])
        return Claimed(claims, [], [], not is_all, [])

    async def claim_at_once(self, session: Session, worker_id: int) -> Claimed:
        return await shortcuts.claim_at_once(session, worker_id, "default", 100, self._labels, [])

    async def begin(self, session: Session, claims: Sequence[Claim]) -> Begun | None:
        """Note that claims begin; returns their states."""
        latest = max(claim.claimed_at for claim in claims)
        return await workers.begin(
            session, claims[0].worker_id, latest, [], [claim.id for claim in claims],
            by_limits=any(claim.needs is not None for claim in claims),
        )  # fmt: skip

    async def end_lease(self, worker_id: int) -> None:
        await self.harness.sql("update stepwell.workers set lease_until = '-infinity' where id = $1", worker_id)

    async def reap(self, session: Session, claims: Sequence[Claim]) -> list[int]:
        """Reap what of the claims may be; returns the ids."""
        reaped, _ = await instances.reap(session, [(c.id, c.concurrency_key, c.parent_id) for c in claims], 10)  # type: ignore[arg-type]
        return [row.id for row in reaped]

    async def flush(self, session: Session, commits: Sequence[Commit]) -> list[int]:
        """Commit outcomes; returns the ids that committed."""
        flushed = await flushes.flush(session, commits)  # type: ignore[arg-type]  # a session does for a database
        return [row.id for row in flushed.committed]

    async def row(self, instance_id: int, *columns: str) -> tuple[Any, ...]:
        [row] = await self.harness.sql(
            f"select {', '.join(columns)} from stepwell.instances join stepwell.instance_data using (id) where id = $1",
            instance_id,
        )
        return tuple(row)

    async def blocked(self, session: Session, call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a call and wait until the server says that it waits for a lock."""
        pid = session.connection.get_server_pid()
        task = asyncio.create_task(call)
        await eventually(lambda: self.harness.sql("select from pg_locks where pid = $1 and not granted", pid))
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
        claim=claim, status=Status.RUNNABLE, step="b", version=claim.version, attempt=0, state=state
    )  # fmt: skip


def done(claim: Claim, result: str = '"done"') -> Commit:
    """The commit of Done(result)."""
    return Commit(
        claim=claim, status=Status.DONE, step=claim.step, version=claim.version, attempt=claim.attempt, result=result
    )  # fmt: skip
