"""SIGSTOP and SIGCONT: a worker that was frozen until it expired does no harm and continues under a new id."""

from __future__ import annotations

from stepwell.testing import Harness
from tests.crash.conftest import StartWorker, effects, worker_ids
from tests.support.crash_app import Frozen, Innocent
from tests.support.waiting import eventually

LEASES = {"lease": 1.5, "heartbeat": 0.3, "reap": 0.2}


async def test_a_worker_frozen_until_its_reap_commits_nothing_and_starts_again(
    h: Harness, start_worker: StartWorker
) -> None:
    obedient = await h.engine.start(Frozen)
    stubborn = await h.engine.start(Frozen, {"stubborn": True})
    both = (obedient, stubborn)
    frozen = await start_worker(h.url, **LEASES)
    old_id = await frozen.ready()
    await eventually(lambda: has_run(h, *(handle.id for handle in both)))
    frozen.freeze()
    other = await start_worker(h.url, **LEASES)
    ended = [await handle.wait(timeout=30) for handle in both]
    assert [(end.status, end.result) for end in ended] == [("done", "in time")] * 2

    frozen.wake()
    await eventually(lambda: has_entered_anew(h, frozen.pid, old_id))
    told = [await eventually(lambda handle=handle: what_was_told(h, handle.id)) for handle in both]
    await other.stop()
    further = await h.engine.start(Innocent)

    assert await further.result(timeout=30) == "worked"
    assert (await effects(h, further.id))[0][3] == frozen.pid
    assert told == [[(frozen.pid, "told: the lease of this worker is lost")]] * 2
    assert [await handle.get() for handle in both] == ended


async def has_run(h: Harness, *instances: int) -> bool:
    return all([await effects(h, instance) for instance in instances])


async def has_entered_anew(h: Harness, pid: int, old_id: int) -> bool:
    ids = await worker_ids(h, pid)
    return len(ids) == 1 and ids[0] != old_id


async def what_was_told(h: Harness, instance: int) -> list[tuple[int, str]]:
    return [(pid, note) for *_, pid, note in await effects(h, instance) if note != "ran"]
