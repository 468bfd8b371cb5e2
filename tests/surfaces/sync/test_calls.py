"""Every method of `engine.sync`, as a script without an event loop calls it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from stepwell import Duplicate, Engine, InstanceFailed, NoTarget, SchemaOutdated, Status, SyncEngine, SyncHandle
from tests.surfaces.sync.machines import MACHINES, Broken, Doubled, Waiter, add


def test_start_and_result_work_without_an_event_loop(sync: SyncEngine) -> None:
    handle = sync.start(Doubled, {"number": 21}, key="the answer")

    with sync.worker():
        result = handle.result(timeout=30)

    assert (result, handle.key, sync.get("the answer").id) == (42, "the answer", handle.id)


def test_start_many_is_one_transaction_and_returns_duplicates(sync: SyncEngine) -> None:
    first, again, other = sync.start_many(
        [Doubled.child({"number": 1}, key="many"), Doubled.child({"number": 2}, key="many"), (add, add.args(a=1, b=2))]
    )

    assert isinstance(first, SyncHandle)
    assert isinstance(again, Duplicate)
    assert isinstance(other, SyncHandle)
    assert again.id == first.id
    with sync.worker():
        assert (first.result(timeout=30), other.result(timeout=30)) == (2, 3)


def test_signals_reach_instances_by_key_by_handle_and_in_batches(sync: SyncEngine) -> None:
    one, two = sync.start(Waiter, key="one"), sync.start(Waiter, key="two")
    three = sync.signal_or_start(Waiter, key="three", signal="go", payload=3)

    two.signal("go", 2)
    answers = sync.signal_many([("one", "go", 1), ("nobody", "go")])

    assert answers[0] is None
    assert isinstance(answers[1], NoTarget)
    with sync.worker():
        assert [handle.result(timeout=30) for handle in (one, two, three)] == [1, 2, 3]
    with pytest.raises(NoTarget):
        sync.signal("one", "go")


def test_operators_cancel_retry_and_restart(sync: SyncEngine) -> None:
    waiting, broken = sync.start(Waiter), sync.start(Broken)

    with sync.worker():
        failed = broken.wait(timeout=30)
        assert waiting.wait(timeout=30, until="settled").status is Status.AWAITING_SIGNAL
    cancelled = waiting.cancel(reason="not needed")
    sync.restart(waiting.id, step="start")

    assert (failed.status, cancelled, sync.retry(broken.id)) == (Status.FAILED, True, True)
    assert [handle.get().status for handle in (waiting, broken)] == [Status.RUNNABLE, Status.RUNNABLE]
    assert sync.cancel(waiting.id)
    assert sync.handle(waiting.id).get().status is Status.CANCELLED


def test_insights_list_pages_and_iterate_over_all_instances(sync: SyncEngine) -> None:
    handles = [sync.start(Waiter, queue="looked at") for _ in range(3)]
    handles[0].signal("go", 1)
    ids = [handle.id for handle in reversed(handles)]

    page = sync.insights.list(queue="looked at", limit=2)
    walked = [instance.id for instance in sync.insights.each(queue="looked at")]

    assert ([instance.id for instance in page.items], page.next) == (ids[:2], ids[1])
    assert walked == ids
    assert [(instance.id, depth) for instance, depth in sync.insights.tree(ids[0])] == [(ids[0], 0)]
    assert [signal.payload for signal in sync.insights.inbox(handles[0].id)] == [1]


def test_insights_each_reads_the_next_page_when_it_gets_there(
    sync: SyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepwell.sync.insights.MOST_PER_PAGE", 2)
    handles = [sync.start(Waiter, queue="in pages") for _ in range(5)]

    walked = [instance.id for instance in sync.insights.each(queue="in pages")]

    assert walked == [handle.id for handle in reversed(handles)]


def test_a_worker_runs_for_the_length_of_the_block(sync: SyncEngine) -> None:
    with sync.worker({"mine": 3}, poll=timedelta(seconds=0.5)) as worker:
        [row] = [row for row in sync.insights.workers() if row.id == worker.id]
        handle = sync.start(add, {"a": 1, "b": 2}, queue="mine")
        assert handle.result(timeout=30) == 3

    assert (row.queues, worker.stats.steps) == ({"mine": 3}, 1)
    assert worker.id is None


def test_migrate_and_check_work_without_a_schema(sync: SyncEngine, engine: Engine) -> None:
    asyncio.run(_drop_schema(engine))

    with pytest.raises(SchemaOutdated):
        sync.check()
    with pytest.raises(SchemaOutdated):
        sync.start(Doubled)
    applied = sync.migrate()

    assert applied[0] == "0001_initial"
    assert sync.migrate() == []
    assert sync.check() == 1
    assert sync.start(Doubled).id > 0


def test_a_failed_instance_raises_its_error_with_the_caller_in_the_traceback(sync: SyncEngine) -> None:
    handle = sync.start(Broken)

    with sync.worker(), pytest.raises(InstanceFailed, match="it is broken") as caught:
        handle.result(timeout=30)

    files = [entry.path.name for entry in caught.traceback]
    assert (files[0], files[-1]) == ("test_calls.py", "wait.py")


def test_a_result_that_is_late_is_a_timeout(sync: SyncEngine) -> None:
    handle = sync.start(Waiter)

    with pytest.raises(TimeoutError, match="is still runnable"):
        handle.result(timeout=0.01)
    assert sync.wait(handle.id, timeout=0).status is Status.RUNNABLE


def test_the_settings_are_the_engines(url: str) -> None:
    with Engine(url, machines=MACHINES, tenant="acme").sync as sync:
        assert sync.settings.tenant == "acme"
        assert sync.start(Doubled).get().tenant == "acme"


async def _drop_schema(engine: Engine) -> None:
    from stepwell._store.testing import databases  # noqa: PLC0415 - only here

    assert engine._dsn is not None
    await databases.query(engine._dsn, "drop schema stepwell cascade")
