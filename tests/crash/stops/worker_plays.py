"""Scenarios with a worker process that is stopped."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from stepwell._client.client import Handle
from stepwell.testing import Harness
from stepwell.testing.stops.processes import Processes
from tests.crash.stops.looks import answer, booked, open_questions, play
from tests.crash.stops.machines import (
    CREATE_LEDGER,
    FAILS,
    KILLS,
    PIPELINES,
    Asker,
    Batch,
    Family,
    Leaf,
    Listener,
    Narrow,
    Nowhere,
    Numbers,
    Sleeper,
    TxAsker,
    TxFamily,
    TxLeaf,
    TxListener,
    TxNarrow,
    Undecided,
    hasty,
    scores,
    unsent,
)  # fmt: skip
from tests.support.waiting import eventually

LATER = timedelta(hours=1)
FLUSH = "stepwell._store.operations.commit._commit_full"
BARE = "stepwell._store.operations.commit._commit_fast"
OF_A_STEP = "stepwell._store.step_transaction.transaction.Transaction"


async def results(handles: list[Handle[Any]]) -> list[Any]:
    ended = [await handle.wait() for handle in handles]
    return [[one.status, one.result] for one in ended]


async def families(h: Harness) -> Any:
    """Children with and without keys, one of which is taken."""
    sleeper = await h.engine.start(Sleeper, {}, key="taken")
    found = await results([await h.engine.start(Family, {"name": name}) for name in "ab"])
    await sleeper.signal("wake")
    return [found, await results([sleeper])]


async def narrow(h: Harness) -> Any:
    """Keys, slots and tokens, alone and together."""
    started = [await h.engine.start(Narrow, {"n": n}) for n in range(3)]
    started += [await h.engine.start(Narrow, {"n": n}, concurrency_key="one") for n in range(3)]
    started += [await h.engine.start(Leaf, {"n": n}, concurrency_key="other") for n in range(4)]
    return await results(started)


async def inbox(h: Harness) -> Any:
    """Signals that are awaited, stored, consumed and dropped."""
    started = [await h.engine.start(Listener, {}, concurrency_key=key) for key in (None, "one")]
    for listener in started:
        for name in ("noise", "go", "on", "late"):
            await listener.signal(name)
    return await results(started)


async def questions(h: Harness) -> Any:
    """Interactions that are completed, time out, cannot be sent, or are abandoned."""
    started = [await h.engine.start(Asker, state) for state in ({}, {"times_out": True}, {"over": "nowhere"})]
    started += [await h.engine.start(Batch, {"upto": 3}), await h.engine.start(Undecided, {})]
    answering = asyncio.create_task(answer(h, [started[0].id, started[3].id], lambda _: 1))
    try:
        return await results(started)
    finally:
        answering.cancel()


async def items(h: Harness) -> Any:
    """Continuations; then one fails, and the time of one interaction runs out."""
    runs = [await h.engine.start(machine, Numbers(3)) for machine in (scores, scores, hasty)]
    _, failing, timing_out = ids = [run.id for run in runs]
    last = asyncio.Event()

    def reply(question: dict[str, Any]) -> Any:
        number = question["item"]
        match question["instance_id"], number:
            case (instance, 0) if instance == timing_out:
                return None
            case (instance, 1) if instance == failing:
                return {"number": number, "points": FAILS} if last.is_set() else None
        return {"number": number, "points": number}

    answering = asyncio.create_task(answer(h, ids, reply))
    try:
        await eventually(lambda: have_ended(h, ids, 7))
        last.set()
        await h.sql("update stepwell.interactions set deadline = now() where instance_id = $1 and item = 0", timing_out)
        await runs[1].wait()  # ends of children take the same path as ends of items
        return [await results(runs), await families(h)]
    finally:
        answering.cancel()


async def have_ended(h: Harness, parents: list[int], number: int) -> bool:
    text = "select from stepwell.instances where parent_id = any ($1) and finished_at is not null"
    return len(await h.sql(text, parents)) == number


async def unsendable(h: Harness) -> Any:
    """Interactions of a pipeline that cannot be sent."""
    return await results([await h.engine.start(unsent, Numbers(2))])


async def with_ledger(h: Harness, _: Processes) -> None:
    await h.sql(CREATE_LEDGER)


async def transactional(h: Harness) -> Any:
    """All of them in transactional steps."""
    sleeper = await h.engine.start(Sleeper, {}, key="taken")
    started = [await h.engine.start(TxFamily, {"name": name}) for name in "ab"]
    started += [await h.engine.start(TxNarrow, {"n": n}, concurrency_key="one") for n in range(2)]
    listener, asker = await h.engine.start(TxListener, {}), await h.engine.start(TxAsker, {})
    for name in ("noise", "go", "on", "late"):
        await listener.signal(name)
    answering = asyncio.create_task(answer(h, [asker.id], lambda _: 1))
    try:
        found = await results([*started, listener, asker])
    finally:
        answering.cancel()
    await sleeper.signal("wake")
    return [found, await results([sleeper])]


async def orphans(h: Harness, processes: Processes) -> None:
    """Rows of a dead worker of another host: a child, one with a key, one with a slot, and an item."""
    await h.engine.start(Family, {"name": "a", "dies": True})
    await h.engine.start(Leaf, {"dies": True}, concurrency_key="one")
    await h.engine.start(Narrow, {"dies": True})
    run = await h.engine.start(scores, Numbers(2))
    process = await processes.start(h.url)
    asked = await eventually(lambda: all_open(h, run.id, 2))
    await h.engine.complete(interaction=asked[0]["id"], reply={"number": 0, "points": KILLS})
    await process.ended.wait()
    await h.sql("update stepwell.workers set host = 'another'")


async def all_open(h: Harness, instance: int, number: int) -> list[dict[str, Any]]:
    found = await open_questions(h, [instance])
    return found if len(found) == number else []


async def reaped(h: Harness) -> Any:
    behind = [await h.engine.start(Leaf, {"n": 1}, concurrency_key="one"), await h.engine.start(Narrow, {"n": 1})]
    found = await results(behind)
    await eventually(lambda: nothing_executes(h))
    return found


async def nothing_executes(h: Harness) -> bool:
    return not await h.sql("select from stepwell.instances where finished_at is null limit 1")


async def forgotten(h: Harness) -> Any:
    """Rows behind a key, a limit and a rate limit that are free."""
    held = {"key": Leaf, "limit": Narrow, "rate": Narrow}
    started = []
    for hold, machine in held.items():
        handle = await h.engine.start(machine, {"n": 1}, delay=LATER, concurrency_key="one" if hold == "key" else None)
        await h.sql(
            "update stepwell.instances set hold = $2, due_at = now(), "
            "rate_limit = case when $2 = 'rate' then 'slow' end where id = $1", handle.id, hold,
        )  # fmt: skip
        started.append(handle)
    return await results(started)


PLAYS = [
    play("families", families, [Family, Leaf, Sleeper], of=[FLUSH, BARE,
                                                            "stepwell._store.registrations.machines.register"]),
    play("narrow", narrow, [Narrow, Leaf], of=[
        FLUSH, "stepwell._store.limits.admit", "stepwell._store.limits.admit_due",
        "stepwell._store.concurrency_keys.hold",
    ]),
    play("inbox", inbox, [Listener], of=[FLUSH]),
    play("questions", questions, [Asker, Batch, Undecided], of=[
        FLUSH, "stepwell._store.interactions._expire", "stepwell._store.interactions.fail",
        "stepwell._worker.running.ask_each.IncrementalAsk._append_once",
        "stepwell._worker.running.ask_each.IncrementalAsk._hold",
    ], transports=[Nowhere()]),
    play("items", items, [Family, Leaf, Sleeper, *PIPELINES], of=[FLUSH, BARE, "stepwell._store.interactions._expire"],
         transports=[Nowhere()]),
    play("unsendable", unsendable, PIPELINES, of=["stepwell._store.interactions.fail"], transports=[Nowhere()]),
    play("transactional", transactional, [TxFamily, TxLeaf, TxNarrow, TxListener, TxAsker, Sleeper], of=[OF_A_STEP],
         prepare=with_ledger, look=booked),
    play("transactional with SQLAlchemy", transactional, [TxFamily, TxLeaf, TxNarrow, TxListener, TxAsker, Sleeper],
         of=[OF_A_STEP], prepare=with_ledger, look=booked, transactional_session="sqlalchemy"),
    play("reaped", reaped, [Family, Leaf, Narrow, *PIPELINES], of=[
        "stepwell._store.instances.reap", "stepwell._worker.upkeep.reaper.Reaper._reap",
    ], prepare=orphans, max_crashes=1, transports=[Nowhere()], lease=timedelta(seconds=3)),
    play("forgotten", forgotten, [Leaf, Narrow], of=[
        "stepwell._store.concurrency_keys._free_keys", "stepwell._store.concurrency_keys._free_limits",
        "stepwell._store.limits.admit_due",
    ]),
]  # fmt: skip
