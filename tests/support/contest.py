"""Which session waits for which, step by step: raw connections in place of the store's database, one per contestant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any, Self

import asyncpg

from stepwell import Context, Done, Machine, Next, step
from stepwell._client.client import Client
from stepwell._client.control import ControlOperations
from stepwell._client.signal import SignalOperations
from stepwell._core.commit import Commit, Park, Values
from stepwell._core.instance import Claim
from stepwell._core.start_request import NewInstance, admit_many
from stepwell._core.status import Status
from stepwell._store import instances, signals
from stepwell._store.connection.driver_errors import translated
from stepwell._store.connection.pool import WORKER
from stepwell._store.operations import commit
from stepwell._store.operations.claim import claim_full
from stepwell._store.registrations import workers
from stepwell._store.registrations.workers import HostIdentity
from stepwell.testing import Harness
from tests.support.claims import request
from tests.support.commits import full_path
from tests.support.race import LEASE, Session
from tests.support.waiting import eventually

FOREIGN_WAITS = (
    "select from pg_locks l join pg_stat_activity a using (pid) where not l.granted and a.datname = current_database()"
)


class Plain(Machine, initial="a"):
    """Two steps; the tests write their outcomes themselves."""

    @step
    async def a(self, ctx: Context[Any]) -> Next:
        return Next(self.b)

    @step
    async def b(self, ctx: Context[Any]) -> Done:
        return Done(len(ctx.children))


class Contestant(Session):
    """A session in place of the store's database: errors are the store's, as its callers expect."""

    @property
    def pid(self) -> int:
        return self.connection.get_server_pid()

    async def fetch(self, name: str, *args: object) -> list[asyncpg.Record]:
        with translated():
            return await super().fetch(name, *args)

    def check_loop(self) -> None:
        """A test has one loop."""

    async def rollback(self) -> None:
        await self._transaction.rollback()


class Contest:
    """A test's database, the contestants on it, and their calls."""

    def __init__(self, harness: Harness, stack: AsyncExitStack, onlooker: asyncpg.Connection) -> None:
        self.harness = harness
        self.registry = harness.engine._registry
        self._stack = stack
        self._onlooker = onlooker

    @classmethod
    @asynccontextmanager
    async def on(cls, harness: Harness) -> AsyncIterator[Self]:
        async with AsyncExitStack() as stack:
            onlooker = await asyncpg.connect(harness.url)
            stack.push_async_callback(onlooker.close)
            yield cls(harness, stack, onlooker)

    async def sql(self, text: str, *args: Any) -> list[asyncpg.Record]:
        """Query on a connection that takes no part."""
        return list(await self._onlooker.fetch(text, *args))

    async def join(self, number: int = 2) -> list[Contestant]:
        return [await self._join() for _ in range(number)]

    async def _join(self) -> Contestant:
        connection = await asyncpg.connect(self.harness.url, server_settings=WORKER, command_timeout=30)
        self._stack.push_async_callback(connection.close)
        return Contestant(connection)

    def client(self, contestant: Contestant) -> Client:
        """The client's calls, through that connection only."""
        engine = self.harness.engine
        assert engine._notifier is not None
        return Client(
            contestant, self.registry, engine._notifier, engine._emitter, engine.settings,  # type: ignore[arg-type]
            engine._token_keys,
        )

    def signalling(self, contestant: Contestant) -> SignalOperations:
        """The signals of a client, through that connection only."""
        return self.client(contestant).signalling

    def operating(self, contestant: Contestant) -> ControlOperations:
        """The operator's calls, through that connection only."""
        return self.client(contestant).operating

    def entries(self, *entries: Any) -> list[NewInstance]:
        return admit_many(self.registry, entries, tenant="", max_payload=10_000)

    async def claim(self, contestant: Contestant, limit: int = 100) -> list[Claim]:
        """Claim as a worker without a process, on a host of its own."""
        place = HostIdentity("nowhere", "never", 1, "1")
        worker_id = (await workers.register(contestant, place, "0", {}, self.registry.labels(), LEASE)).id
        return (await claim_full(contestant, request(worker_id, limit, self.registry.labels()))).claims

    async def end_lease(self, claim: Claim) -> None:
        """Let the worker of a claim be dead, after the claim was marked started."""
        await self.sql(
            "update stepwell.workers set lease_until = '-infinity', begun_at = $2 where id = $1",
            claim.worker_id, claim.claimed_at,
        )  # fmt: skip

    async def reap(self, contestant: Contestant, claims: Sequence[Claim], max_crashes: int = 10) -> list[int]:
        lost = [(claim.id, claim.concurrency_key, claim.parent_id) for claim in claims]
        reaped, _ = await instances.reap(contestant, lost, max_crashes)  # type: ignore[arg-type]
        return sorted(row.id for row in reaped)

    async def flush(self, contestant: Contestant, *commits: Commit) -> list[int]:
        """Commit outcomes; returns the ids that committed."""
        flushed = await commit.commit(contestant, commits, full_path())  # type: ignore[arg-type]
        if flushed.leftovers:  # as the committer does
            await signals.sweep(contestant, flushed.leftovers)
        return sorted(row.id for row in flushed.committed)

    async def row(self, instance_id: int, *columns: str) -> Any:
        """The given columns of an instance; the value itself if it is one."""
        [row] = await self.sql(
            f"select {', '.join(columns)} from stepwell.instances where id = $1", instance_id
        )
        return row[0] if len(columns) == 1 else tuple(row)

    async def inbox(self, instance_id: int) -> list[tuple[str, Any]]:
        """Name and payload of the unread signals, in arrival order."""
        rows = await self.sql(
            "select name, payload #>> '{}' from stepwell.signals where instance_id = $1 and not consumed order by id",
            instance_id,
        )
        return [tuple(row) for row in rows]

    async def children(self, instance_id: int) -> list[str]:
        rows = await self.sql(
            "select status from stepwell.instances where parent_id = $1 order by id", instance_id
        )
        return [row["status"] for row in rows]

    async def blocked(self, contestant: Contestant, call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a call and wait until the server reports that it waits for a lock."""
        task = asyncio.create_task(call)
        waits = "select from pg_locks where pid = $1 and not granted"
        await eventually(lambda: self.sql(waits, contestant.pid))
        assert not task.done()
        return task

    async def is_anybody_waiting(self) -> bool:
        return bool(await self.sql(FOREIGN_WAITS))

    async def family(self, contestant: Contestant, children: int, **options: Any) -> tuple[Claim, list[Claim]]:
        """A parent that waits for its children, each claimed by one worker; the parent's old claim."""
        parent = await self.executing(contestant)
        await self.flush(contestant, spawned(parent, self.entries(*[Plain.child({}, **options)] * children)))
        return parent, [(await self.claim(contestant, 1))[0] for _ in range(children)]

    async def executing(self, contestant: Contestant, **options: Any) -> Claim:
        """One claimed instance."""
        await self.harness.engine.start(Plain, {}, **options)
        [claim] = await self.claim(contestant)
        return claim


def following(claim: Claim, consumes: tuple[int, ...] = ()) -> Commit:
    """The commit of Next(b)."""
    return Commit(
        claim=claim, status=Status.RUNNABLE, step="b", version=claim.version, attempt=0, consumes=consumes
    )  # fmt: skip


def done(claim: Claim) -> Commit:
    """The commit of Done("done")."""
    return Commit(
        claim=claim, status=Status.DONE, step=claim.step, version=claim.version, attempt=claim.attempt,
        values=Values(result='"done"'),
    )  # fmt: skip


def stopped(claim: Claim) -> Commit:
    """The commit of Stop("stopped")."""
    return Commit(
        claim=claim, status=Status.FAILED, step=claim.step, version=claim.version, attempt=claim.attempt,
        values=Values(error='{"type": "Stop", "message": "stopped", "traceback": null}'),
    )  # fmt: skip


def parked(claim: Claim, *names: str, handed: tuple[int, ...] = (), timeout: timedelta | None = None) -> Commit:
    """The commit of Await(*names, then=b)."""
    return Commit(
        claim=claim, status=Status.AWAITING_SIGNAL, step="b", version=claim.version, attempt=0,
        park=Park(awaits=names, handed=handed, timeout=timeout),
    )  # fmt: skip


def spawned(claim: Claim, children: Sequence[NewInstance]) -> Commit:
    """The commit of Spawn(children, then=b)."""
    return Commit(
        claim=claim, status=Status.AWAITING_CHILDREN, step="b", version=claim.version, attempt=0,
        park=Park(children=tuple(children)),
    )  # fmt: skip
