"""A standby is promoted that lacks the last commits: earlier claims do not hold on its timeline."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import asyncpg
import pytest

from stepwell import Context, DatabaseError, Done, Engine, Machine, Next, Outcome, Spawn, step
from stepwell._core.store_errors import Outage
from stepwell._process import probes
from stepwell._store.connection.pool import WORKER, Database
from stepwell._store.connection.settings import Bounds, EngineConnection
from stepwell._store.connection.timeline import IN_RECOVERY, Timelines
from stepwell._store.migrate import current_stamp
from stepwell._store.step_transaction.transaction import Connections, begin
from stepwell.testing import Harness, armed
from tests.chaos.proxy import Proxies
from tests.chaos.replicas import PATIENCE, Layout, Replicas
from tests.conftest import MakeHarness
from tests.support.own_server import own_server
from tests.support.waiting import eventually

# No beat reports the loss to the worker.
SETTINGS: dict[str, Any] = {"lease": timedelta(seconds=60), "heartbeat": timedelta(seconds=20)}
POSITION = "select pg_current_wal_lsn()::text as at"
HAS_REPLAYED = "select true from pg_stat_replication where replay_lsn >= $1::text::pg_lsn"
ROW = "select status, fence, step from stepwell.instances where id = $1"


class Stage:
    """What the steps of a test have run, and what they wait for."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.has_failed_over = False
        self.second_is_open = asyncio.Event()
        self.second_may_end = asyncio.Event()


stage = Stage()


class Turned(Machine, initial="first"):
    """Before the failover its second claim spawns; after it, the second claim is of another step."""

    @step
    async def first(self, ctx: Context[Any]) -> Outcome:
        stage.ran.append("first")
        if stage.has_failed_over:
            return Next(self.second)
        if stage.ran == ["first"]:
            return Next(self.first)
        return Spawn([Child.child(), Child.child()], then=self.third)

    @step
    async def second(self, ctx: Context[Any]) -> Outcome:
        stage.ran.append("second")
        stage.second_is_open.set()
        await stage.second_may_end.wait()
        return Next(self.third)

    @step
    async def third(self, ctx: Context[Any]) -> Outcome:
        stage.ran.append("third")
        return Done("done")


class Child(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done()


class HeldSpawns:
    """Holds the commits of spawns, and of nothing else, until they are released."""

    def __init__(self) -> None:
        self.is_reached = asyncio.Event()
        self._may_go_on = asyncio.Event()

    async def pass_by(self, _: dict[str, Any]) -> None:
        task = asyncio.current_task()
        if task is not None and task.get_name() == "stepwell spawner":
            self.is_reached.set()
            await self._may_go_on.wait()

    def release(self) -> None:
        self._may_go_on.set()


@contextmanager
def replicated(postgres: Literal["15", "18"]) -> Iterator[tuple[Replicas, str]]:
    """A primary with a standby, not started, and the URL that leads to the primary."""
    home = Path(tempfile.mkdtemp(prefix="stepwell-timeline-", dir="/tmp"))
    home.chmod(0o755)
    proxies = Proxies(1)
    try:
        try:
            layout = Layout(postgres=postgres, home=home, megabytes=None, with_standby=True, environment={})
            replicas = Replicas(layout, proxies)
        except LookupError as missing:
            pytest.skip(str(missing))
        try:
            yield replicas, f"postgresql://postgres@127.0.0.1:{proxies.get('engine').port}/postgres"
        finally:
            replicas.remove()
    finally:
        proxies.close()
        shutil.rmtree(home, ignore_errors=True)


@pytest.mark.parametrize("postgres", ["15", "18"])
async def test_an_outcome_of_a_lost_claim_never_lands_on_a_new_timeline(
    postgres: Literal["15", "18"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "stage", Stage())
    spawns = HeldSpawns()
    monkeypatch.setitem(probes.hooks, "committer.before_commit", spawns.pass_by)
    with replicated(postgres) as (replicas, url):
        await replicas.start()
        made = Engine(url, machines=[Turned, Child])
        await made.migrate()
        async with made as engine, engine.worker(queues={"default": 1}, **SETTINGS) as worker:
            before = worker.id
            await engine.queues.pause("default")
            turned = await engine.start(Turned)
            await all_replayed(replicas)
            replicas.cut_replication()
            await engine.queues.resume("default")
            await spawns.is_reached.wait()
            [lost] = await replicas.primary.query(ROW, turned.id)

            stage.has_failed_over = True
            await replicas.fail_over()
            replicas.lead_to(replicas.primary)
            await eventually(lambda: resumed(engine))
            await asyncio.wait_for(stage.second_is_open.wait(), PATIENCE)
            [found] = await replicas.primary.query(ROW, turned.id)
            spawns.release()
            await eventually(lambda: worker._graph.committing.spawner.queue.waiting == 0)
            stage.second_may_end.set()
            result = await turned.result(timeout=PATIENCE)
            children = await replicas.primary.query("select from stepwell.instances where machine = 'Child'")

            assert (lost["fence"], lost["step"], found["step"]) == (found["fence"], "first", "second")
            assert stage.ran == ["first", "first", "first", "second", "third"]
            assert (result, children) == ("done", [])
            assert worker.id != before


class Gated(Machine):
    """Its only step has returned, and its outcome is not committed, when the server is stopped."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        stage.ran.append("start")
        return Done("done")


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_an_outcome_that_was_ready_is_committed_once_after_a_restart(
    mode: Literal["fast", "immediate"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "stage", Stage())
    with own_server() as server:
        monkeypatch.setenv("STEPWELL_TEST_DATABASE_URL", server.url())
        async with Harness([Gated]) as h, h.engine.worker(**SETTINGS) as worker:
            before = worker.id
            with armed("committer.before_commit", hold=True) as committing:
                gated = await h.engine.start(Gated)
                await committing.reached()
                await h.sql("checkpoint")  # the claim need not be on the disk before its outcome is
                await asyncio.to_thread(server.stop, mode)
                await asyncio.to_thread(server.start)
            result = await gated.result(timeout=PATIENCE)

            assert (result, stage.ran) == ("done", ["start"])
            assert worker.id == before


@pytest.mark.parametrize("is_hidden", [False, True])
async def test_an_ordinary_role_learns_the_timeline_unless_it_is_hidden(h: Harness, is_hidden: bool) -> None:
    if is_hidden:
        await h.sql("revoke execute on function pg_walfile_name(pg_lsn) from public")
    connection: Any = await asyncpg.connect(h.url, connection_class=EngineConnection)
    await connection.execute("set role pg_read_all_data")

    await connection.settle(h.url, {}, Bounds())
    await connection.close()

    assert (connection.timeline is None, connection.timeline) == (is_hidden, None if is_hidden else "00000001")


async def test_a_connection_to_a_standby_is_not_used_and_no_new_timeline() -> None:
    timelines = Timelines("00000001")

    with pytest.raises(Outage, match="in recovery"):
        timelines.admit(IN_RECOVERY)

    assert (timelines.current, timelines.era) == ("00000001", 0)


async def test_an_idle_connection_of_an_earlier_timeline_is_not_used(h: Harness) -> None:
    async with Database(h.url, session=WORKER, timelines=Timelines()) as database:
        assert database.timelines is not None
        await current_stamp(database)

        database.timelines.switch_to("00000009")  # the heartbeat has met the new primary; this server still answers

        with pytest.raises(Outage, match="on a timeline that the server has left"):
            await current_stamp(database)


async def test_a_step_begins_on_no_idle_connection_of_an_earlier_timeline(h: Harness) -> None:
    timelines = Timelines()
    pool = Connections(h.url, most=1, timelines=timelines)
    await pool.open()
    await (await begin(pool, "1:1", 1, timedelta(seconds=5))).end()

    timelines.switch_to("00000009")

    with pytest.raises(Outage, match="timeline"):
        await begin(pool, "1:2", 1, timedelta(seconds=5))
    await pool.close()


async def test_a_statement_that_waits_while_the_timeline_changes_is_not_sent(h: Harness) -> None:
    async with Database(h.url, session=WORKER, most=1, timelines=Timelines()) as database:
        assert database.timelines is not None
        async with database.transaction():
            waiting = asyncio.create_task(current_stamp(database))
            await asyncio.sleep(0)  # it waits for the only connection now
            before = database.timelines.current
            database.timelines.switch_to("00000009")
            database.timelines.switch_to(before or "")  # only the era tells them apart

        with pytest.raises(Outage, match="timeline has changed since this statement was requested"):
            await waiting


@pytest.fixture
async def h(make_harness: MakeHarness) -> Harness:
    return await make_harness([Gated])


async def all_replayed(replicas: Replicas) -> None:
    """Wait until the standby has all that is committed."""
    [position] = await replicas.primary.query(POSITION)
    await eventually(lambda: replicas.primary.query(HAS_REPLAYED, position["at"]), PATIENCE)


async def resumed(engine: Engine) -> bool:
    """Let the queue continue, once the new primary accepts connections."""
    try:
        await engine.queues.resume("default")
    except DatabaseError:
        return False
    return True
