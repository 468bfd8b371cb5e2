"""A network that forgets connections, as a NAT or a moved address does: a worker soon commits over new ones."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

from stepwell._process import probes
from stepwell._store.connection.pool import Database
from stepwell._store.connection.sql_files import statement
from tests.crash.dark_connections.site import ANSWER, LOCKS, MARGIN, POLL, REAP, STALLED_FOR, Site, Walk, is_not
from tests.support.waiting import eventually


async def test_a_worker_commits_again_within_half_a_lease_of_darkness(site: Site) -> None:
    async with site.engine.worker({"default": 5}) as worker:
        walks = await site.harness.engine.start_many([Walk.child() for _ in range(300)])
        await eventually(lambda: worker.stats.committed > 50)

        site.proxy.forget()
        before = worker.stats.committed
        await eventually(lambda: worker.stats.committed > before + 50, ANSWER + MARGIN)
        results = [await walk.result(timeout=30) for walk in walks]

    assert results == ["walked"] * 300
    assert worker.stats.leases_lost == 0
    assert await site.harness.sql("select from stepwell.instances where status <> 'done' or crashes > 0") == []


async def test_an_idle_worker_takes_work_within_half_a_lease_of_darkness(site: Site) -> None:
    """All connections of its pool are dark."""
    async with site.engine.worker() as worker:
        await fill(worker._database)

        site.proxy.forget()
        walk = await site.harness.engine.start(Walk)

        await eventually(lambda: worker.stats.committed >= 2, ANSWER + MARGIN)
        assert await walk.result(timeout=20) == "walked"
        assert worker.stats.leases_lost == 0


async def test_the_server_drops_locks_of_a_dark_connection_within_the_lease(site: Site) -> None:
    """A group commit is between two statements, with the row of its outcome locked, when its connection goes dark."""
    stands, goes_on = asyncio.Event(), asyncio.Event()

    async def stop(gap: dict[str, Any]) -> None:
        if gap["after"] == "instances/commit" and not stands.is_set():
            stands.set()
            await goes_on.wait()

    probes.hooks[probes.GAP] = stop
    try:
        async with site.engine.worker() as worker:
            walk = await site.harness.engine.start(Walk, concurrency_key="one")
            await stands.wait()

            site.proxy.forget()
            await eventually(site.left)
            await eventually(lambda: is_not(site.left), LOCKS + MARGIN)
            goes_on.set()
            result = await walk.result(timeout=20)
    finally:
        del probes.hooks[probes.GAP]

    assert result == "walked"
    assert worker.stats.leases_lost == 0
    assert site.runs == {(walk.id, "one"): 1, (walk.id, "two"): 1}


async def test_notifications_arrive_again_soon_after_darkness(site: Site) -> None:
    """Only the poll of an idle worker meets the darkness; the listener itself checks once a minute."""
    notifier = site.engine._notifier
    async with site.engine.worker() as worker:
        await eventually(lambda: notifier.is_listening)
        connection = notifier._listener._connection

        site.proxy.forget()
        await eventually(lambda: notifier._listener._connection is not connection, POLL + 2 * ANSWER + MARGIN)
        await eventually(lambda: notifier.is_listening, MARGIN)

        assert worker.stats.leases_lost == 0


async def test_the_reaper_ends_a_backend_that_waits_for_half_a_statement(site: Site) -> None:
    """A group commit prepares its next statement, with the row of its outcome locked, when its connection goes dark:
    neither the timeout of a statement nor that of an idle transaction ends the backend then."""

    async def forget_next(gap: dict[str, Any]) -> None:
        if gap["after"] == "instances/commit" and gap["before"] not in {None, "commit"} and not prepared:
            prepared.append(gap["before"])
            site.proxy.forget_at = statement(gap["before"])[:200].encode()

    prepared: list[str] = []
    probes.hooks[probes.GAP] = forget_next
    try:
        async with site.engine.worker() as worker:
            walk = await site.harness.engine.start(Walk, concurrency_key="one")
            await eventually(site.stalled, MARGIN)
            await eventually(lambda: is_not(site.stalled), STALLED_FOR + REAP + MARGIN)
            result = await walk.result(timeout=20)
    finally:
        del probes.hooks[probes.GAP]

    assert result == "walked"
    assert worker.stats.leases_lost == 0
    assert site.runs == {(walk.id, "one"): 1, (walk.id, "two"): 1}


async def fill(database: Database) -> None:
    """Open all connections that a pool may have."""
    async with AsyncExitStack() as stack:
        for _ in range(database._most):
            await stack.enter_async_context(database.connection())
