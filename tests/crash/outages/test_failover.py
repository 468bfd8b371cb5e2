"""A database that has lost its last commits: a restored backup, or a promoted standby that was behind."""

from __future__ import annotations

from stepwell import Status
from stepwell.testing import Harness
from tests.crash.conftest import StartWorker, worker_ids
from tests.support.crash_app import Gated
from tests.support.waiting import eventually

SEQUENCES_BACK = """
select setval(format('%I.%I', s.schemaname, s.sequencename)::regclass, 1, false)
from pg_sequences s
where s.schemaname = 'stepwell'
"""
END_CONNECTIONS = """
select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and application_name in ('stepwell worker', 'stepwell listener')
"""
NOTE = """
insert into public.effects (token, instance, step, attempt, crashes, pid, note) values ($1, 0, 'test', 0, 0, 0, $1)
"""
ALL_HAVE_BEATEN = """
select from stepwell.workers w
having min(w.beat_at) > $1::timestamptz + interval '2 s'
"""


async def test_an_outcome_from_before_a_failover_never_lands_in_another_instance(
    h: Harness, start_worker: StartWorker
) -> None:
    """No worker beats meanwhile: only the identities keep them apart."""
    slow = {"lease": 60.0, "heartbeat": 20.0}
    cut_off = await start_worker(h.url, queues={"payroll": 1}, **slow)
    await cut_off.ready()
    payroll = await h.engine.start(Gated, {"name": "payroll"}, queue="payroll")
    await eventually(lambda: has_noted(h, "payroll runs"))
    await lose_commits(h)
    other = await start_worker(h.url, queues={"news": 1}, **slow)
    await other.ready()
    news = await h.engine.start(Gated, {"name": "news"}, queue="news")
    await eventually(lambda: has_noted(h, "news runs"))

    await note(h, "payroll may end")
    await cut_off.stop()  # once the reply to its commit has arrived
    untouched = await news.get()
    await note(h, "news may end")

    assert payroll.id == news.id
    assert (untouched.status, untouched.result) == (Status.EXECUTING, None)
    assert await news.result(timeout=30) == "news"


async def test_workers_from_before_and_after_a_failover_run_a_long_step_once(
    h: Harness, start_worker: StartWorker
) -> None:
    quick = {"lease": 30.0, "heartbeat": 0.2}
    before = await start_worker(h.url, **quick)
    await before.ready()
    before.freeze()
    await lose_commits(h)
    after = await start_worker(h.url, **quick)
    await after.ready()
    before.wake()
    await eventually(lambda: worker_ids(h, before.pid))

    long = await h.engine.start(Gated, {"name": "long"})
    await eventually(lambda: has_noted(h, "long runs"))
    [began] = await h.sql("select pg_catalog.now() as at")
    await eventually(lambda: h.sql(ALL_HAVE_BEATEN, began["at"]))
    await note(h, "long may end")

    assert await long.result(timeout=30) == "long"
    assert await has_noted(h, "long runs") == 1


async def lose_commits(h: Harness) -> None:
    """End the workers' connections, and restore the tables and sequences to those of a standby that received
    nothing."""
    await h.sql(END_CONNECTIONS)  # also of a frozen process, which may be inside a transaction
    await h.sql("truncate stepwell.workers, stepwell.instances, stepwell.instance_data, stepwell.signals")
    await h.sql(SEQUENCES_BACK)


async def note(h: Harness, text: str) -> None:
    await h.sql(NOTE, text)


async def has_noted(h: Harness, text: str) -> int:
    [row] = await h.sql("select count(*)::integer as times from public.effects where note = $1", text)
    return int(row["times"])
