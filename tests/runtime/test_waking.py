"""Who is woken by many signals of a process goes on in the hands of its worker: without a claim, and else as ever."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from stepwell import Await, Context, Done, Engine, Handle, Machine, Next, NoTarget, Spawn, step
from stepwell._runtime.worker import Worker
from stepwell._store.statements import statement
from stepwell.errors import DatabaseUnavailable
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.store.tally import HOUSEKEEPING, Tally
from tests.support.idle import is_idle
from tests.support.proxy import proxy_to
from tests.support.waiting import eventually

MANY = 40  # more than a claim begins at once
IN_HAND = statement("signals/deliver_in_hand")
PLAINLY = statement("signals/deliver_plain").splitlines()[0]
WAITS = """
select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like $1
"""
BEGUN = """
select i.status, i.claimed_at <= w.begun_at and not i.id = any (w.waiting), count(*)
from stepwell.instances i join stepwell.workers w on w.id = i.worker_id group by 1, 2
"""
NO_POLL = dict.fromkeys(("poll", "max_poll"), timedelta(hours=1))
BEAT = dict.fromkeys(("heartbeat", "poll", "max_poll"), timedelta(seconds=0.3))


class Runs:
    """Lets those who were woken end, and counts how often each went on."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.gate.set()
        self.woken: Counter[int] = Counter()
        self.seen: set[str] = set()


class Parked(Machine):
    @dataclass
    class State:
        number: int = 0

    @step
    async def start(self, ctx: Context[State]) -> Await:
        ctx.state.number += 1
        return Await("go", "stop", then=self.finish)

    @step
    async def finish(self, ctx: Context[State]) -> Done:
        ctx.resources.woken[ctx.id] += 1
        await ctx.resources.gate.wait()
        [signal] = ctx.awaited
        ctx.resources.seen.add(str(signal.payload))
        return Done([ctx.state.number, signal.name, signal.payload, len(ctx.inbox), ctx.attempt])


@pytest.fixture
def runs() -> Runs:
    return Runs()


@pytest.fixture
async def h(make_harness: MakeHarness, runs: Runs) -> Harness:
    return await make_harness([Parked], resources=runs, fair_by={"fair": "tenant"}, **NO_POLL)


async def park(engine: Engine, number: int = MANY, **options: Any) -> list[Handle[Any]]:
    """Instances that are parked, each with a state of its own that its first step has changed."""
    parked = [await engine.start(Parked, {"number": n}, **options) for n in range(number)]
    for handle in parked:
        await handle.wait(timeout=10, until="settled")
    return parked


async def is_ready(worker: Worker, *, queue: str = "default") -> None:
    """Wait until it is idle; it knows, as by an earlier signal of its process, where signals wake somebody."""
    worker._reception.note([queue])
    await eventually(lambda: is_idle(worker))


async def go(engine: Engine, parked: list[Handle[Any]]) -> None:
    """Signal all of them at once."""
    answers = await engine.signal_many([(handle.id, "go", {"to": n}) for n, handle in enumerate(parked)])
    assert answers == [None] * len(parked)


async def results(parked: list[Handle[Any]]) -> list[Any]:
    return [await handle.result(timeout=10) for handle in parked]


def expected(number: int = MANY) -> list[list[Any]]:
    return [[n + 1, "go", {"to": n}, 1, 0] for n in range(number)]


async def statuses(h: Harness) -> list[str]:
    return [row["status"] for row in await h.sql("select status from stepwell.instances order by id")]


async def test_who_is_woken_beside_a_worker_with_free_slots_goes_on_in_its_hands_without_a_claim(
    h: Harness, runs: Runs
) -> None:
    async with h.engine.worker({"default": MANY}) as worker:
        parked = await park(h.engine)
        await is_ready(worker)
        tally = Tally(h.engine._opened, worker._database)
        await tally.attach()

        await go(h.engine, parked)
        await eventually(lambda: worker.tally.committed == 2 * MANY)
        sent = {*tally.sent} - HOUSEKEEPING - {"notices/send", "signals/drop"}
        found = await results(parked)

    assert sent == {"signals/deliver_in_hand", "workers/begin", "instances/commit_bare"}
    assert found == expected()
    assert set(runs.woken.values()) == {1}


async def test_the_first_signal_of_a_process_that_wakes_somebody_tells_where(h: Harness) -> None:
    async with h.engine.worker({"default": MANY, "other": MANY}) as worker:
        parked, [first] = await park(h.engine), await park(h.engine, 1, queue="other")
        await first.signal("go", {"to": 0})
        await first.result(timeout=10)
        with armed("reception.before_delivery", hold=True) as delivering:
            going = asyncio.create_task(go(h.engine, parked))
            await delivering.reached()
            kept = {lane.queue: lane.reserved for lane in worker._lanes}
            delivering.release()
            await going
        found = await results(parked)

    assert (kept, found) == ({"default": 0, "other": MANY}, expected())


async def test_where_there_are_not_slots_for_all_the_most_urgent_are_claimed_first(h: Harness, runs: Runs) -> None:
    async with h.engine.worker({"default": MANY - 1}) as worker:
        parked = await park(h.engine, MANY - 3, priority=9) + await park(h.engine, 3, priority=1)
        await is_ready(worker)
        with armed("claimer.before_claim", hold=True) as claiming:
            await go(h.engine, parked)
            found = Counter(await statuses(h))
            claiming.release()
        await results(parked)

    assert found == {"runnable": MANY}
    assert list(runs.woken)[:3] == [handle.id for handle in parked[-3:]]


async def test_a_delivery_by_which_nobody_goes_on_is_followed_by_plain_ones(h: Harness) -> None:
    async with h.engine.worker({"default": MANY, "other": MANY}) as worker:
        parked, others = await park(h.engine), await park(h.engine)
        await is_ready(worker, queue="other")
        tally = Tally(h.engine._opened)
        await tally.attach()

        await go(h.engine, parked)
        found = await results(parked)
        await eventually(lambda: is_idle(worker))
        await go(h.engine, others)
        found += await results(others)

    assert [name for name in tally.sent if name.startswith("signals/")] == [
        "signals/deliver_in_hand", "signals/deliver_plain"
    ]  # fmt: skip
    assert found == expected() * 2


async def test_no_slots_are_kept_while_who_signals_waits_for_a_connection(h: Harness) -> None:
    async with h.engine.worker({"default": MANY}) as worker:
        parked = await park(h.engine)
        await is_ready(worker)
        async with AsyncExitStack() as stack:
            for _ in range(10):  # all that a client has
                await stack.enter_async_context(h.engine._opened.connection())
            going = asyncio.create_task(go(h.engine, parked))
            await eventually(lambda: h.engine._opened._pool._queue._getters)  # type: ignore[union-attr]
            kept = worker._lanes["default"].reserved
        await going
        found = await results(parked)

    assert (kept, found) == (0, expected())


async def test_a_note_that_others_have_begun_while_a_delivery_is_under_way_is_not_about_those_it_wakes(
    h: Harness, runs: Runs
) -> None:
    async with h.engine.worker({"default": MANY}):
        parked = await park(h.engine)
    runs.gate.clear()
    async with proxy_to(h.url) as proxy, Engine(proxy.url, machines=[Parked], resources=runs) as engine:
        late = proxy.hold("answer", IN_HAND)
        async with engine.worker({"default": MANY + 1}) as worker:
            await is_ready(worker)
            going = asyncio.create_task(go(engine, parked))
            await late.happened.wait()
            other = await engine.start(Parked)
            await other.wait(timeout=10, until="settled")
            counted = await h.sql(BEGUN)
            late.release()
            runs.gate.set()
            await going
            found = await results(parked)

    assert [tuple(row) for row in counted] == [("executing", False, MANY)]
    assert found == expected()


async def test_what_a_signal_brings_is_handed_over_as_postgres_has_it(h: Harness, runs: Runs) -> None:
    """And not as it was sent: a step that runs again after a crash sees the same."""
    async with h.engine.worker({"default": MANY}) as worker:
        parked = await park(h.engine)
        await is_ready(worker)

        await h.engine.signal_many([(handle.id, "stop", {"bb": 1, "a": 2}) for handle in parked])
        await results(parked)

    assert runs.seen == {"{'a': 2, 'bb': 1}"}


@pytest.mark.parametrize(
    "options",
    [{"queue": "paused"}, {"queue": "fair"}, {"concurrency_key": "k"}],
    ids=["of a paused queue", "of a fair queue", "with a key"],
)
async def test_what_a_claim_would_leave_is_not_taken_into_hand(
    h: Harness, runs: Runs, options: dict[str, Any]
) -> None:
    async with h.engine.worker({"default": MANY, "paused": MANY, "fair": MANY}) as worker:
        parked = await park(h.engine, **options)
        await is_ready(worker, queue=options.get("queue", "default"))
        await h.sql("insert into stepwell.queues (name, paused_at, changed_at) values ('paused', now(), now())")
        with armed("claimer.before_claim", hold=True) as claiming:
            await go(h.engine, parked)
            found = await statuses(h)
            claiming.release()

    assert found == ["runnable"] * MANY


class Twice(Machine):
    """Is signalled twice, and has children when it is signalled again."""

    @step
    async def start(self, ctx: Context[Any]) -> Await:
        return Await("go", then=self.spawn)

    @step
    async def spawn(self, ctx: Context[Any]) -> Spawn:
        return Spawn([Leaf.child()] * 2, then=self.again)

    @step
    async def again(self, ctx: Context[Any]) -> Await:
        return Await("go", then=self.finish)

    @step
    async def finish(self, ctx: Context[Any]) -> Done:
        return Done([len(ctx.awaited), len(ctx.inbox), len(ctx.children)])


class Leaf(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done()


async def test_who_is_handed_more_than_its_state_and_one_signal_gets_all_of_it(make_harness: MakeHarness) -> None:
    h = await make_harness([Twice, Leaf])
    async with h.engine.worker({"default": MANY}) as worker:
        parked = [await h.engine.start(Twice) for _ in range(MANY)]
        for _ in range(2):
            for handle in parked:
                await handle.wait(timeout=10, until="settled")
            await is_ready(worker)
            await h.engine.signal_many([(handle.id, "note") for handle in parked])
            await h.engine.signal_many([(handle.id, "go") for handle in parked])
            await eventually(lambda: are_further(h))
        found = await results(parked)

    assert found == [[1, 3, 2]] * MANY


async def are_further(h: Harness) -> bool:
    rows = await h.sql(
        "select from stepwell.instances where machine = 'Twice' "
        "and not (step in ('finish', 'again') and status in ('awaiting_signal', 'done'))"
    )
    return not rows


async def test_who_signals_and_is_cancelled_leaves_nobody_in_hands_that_do_not_know_of_it(
    h: Harness, runs: Runs
) -> None:
    """Nor anybody asleep who does not go on in hand."""
    async with h.engine.worker({"default": MANY}) as worker:
        parked = await park(h.engine)
        await h.sql("update stepwell.instances set has_inbox = true where id = $1", parked[5].id)
        await is_ready(worker)
        with armed("reception.before_delivery", hold=True) as delivering:
            signalling = asyncio.create_task(go(h.engine, parked))
            await delivering.reached()
            signalling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await signalling
            delivering.release()
        await eventually(lambda: have_ended(h))  # a client that waits would look after them
        found = await results(parked)
        strays = worker.tally.strays

    assert (found, strays) == (expected(), 0)
    assert worker._lanes["default"].reserved == 0


async def have_ended(h: Harness) -> bool:
    return set(await statuses(h)) == {"done"}


async def test_where_somebody_holds_a_target_no_slots_are_kept_for_who_waits_for_it(h: Harness) -> None:
    async with h.engine.worker({"default": MANY}) as worker:
        parked = await park(h.engine)
        await is_ready(worker)
        connection = await asyncpg.connect(h.url)
        async with connection.transaction():
            await connection.execute("select from stepwell.instances where id = $1 for update", parked[7].id)
            going = asyncio.create_task(go(h.engine, parked))
            await eventually(lambda: h.sql(WAITS, f"{PLAINLY}%"))
            kept = worker._lanes["default"].reserved
        await going
        await connection.close()
        found = await results(parked)

    assert (kept, found) == (0, expected())


async def test_who_is_woken_while_the_worker_stops_is_given_back_and_goes_on_elsewhere(h: Harness, runs: Runs) -> None:
    async with h.engine.worker({"default": MANY}):
        parked = await park(h.engine)
    async with proxy_to(h.url) as proxy, Engine(proxy.url, machines=[Parked], resources=runs) as engine:
        late = proxy.hold("answer", IN_HAND)
        async with engine.worker({"default": MANY}) as worker:
            await is_ready(worker)
            going = asyncio.create_task(go(engine, parked))
            await late.happened.wait()
            stopping = asyncio.create_task(worker.stop())
            await eventually(lambda: worker._lanes["default"].is_closed)
            late.release()
            await going
            await stopping
            found = await statuses(h)
    assert found == ["runnable"] * MANY
    assert not runs.woken

    async with h.engine.worker({"default": MANY}):
        assert await results(parked) == expected()
    assert set(runs.woken.values()) == {1}


async def test_who_is_woken_by_a_delivery_whose_answer_is_lost_is_given_back_at_a_beat_and_goes_on_once(
    h: Harness, runs: Runs
) -> None:
    async with h.engine.worker({"default": MANY}):
        parked = await park(h.engine)
    async with proxy_to(h.url) as proxy, Engine(proxy.url, machines=[Parked], resources=runs, **BEAT) as engine:
        lost = proxy.lose("answer", IN_HAND)
        async with engine.worker({"default": MANY}) as worker:
            await is_ready(worker)
            with pytest.raises(DatabaseUnavailable):
                await go(engine, parked)
            found = await results(parked)

    assert lost.happened.is_set()
    assert (found, worker.tally.strays) == (expected(), MANY)
    assert set(runs.woken.values()) == {1}


async def test_one_who_has_ended_is_told_as_no_target_among_many_who_go_on(h: Harness) -> None:
    async with h.engine.worker({"default": MANY}) as worker:
        parked = await park(h.engine)
        await parked[3].cancel()
        await is_ready(worker)

        answers = await h.engine.signal_many([(handle.id, "go") for handle in parked])
        others = [handle for handle in parked if handle is not parked[3]]
        found = await results(others)

    assert [n for n, answer in enumerate(answers) if isinstance(answer, NoTarget)] == [3]
    assert len(found) == MANY - 1


class Roaming(Machine):
    """Goes on by a signal, and to another step."""

    @step
    async def start(self, ctx: Context[Any]) -> Await:
        return Await("go", then=self.middle)

    @step
    async def middle(self, ctx: Context[Any]) -> Next:
        return Next(self.finish)

    @step
    async def finish(self, ctx: Context[Any]) -> Done:
        return Done(len(ctx.inbox))


async def test_the_signal_that_has_woken_an_instance_is_consumed_by_its_next_step_as_ever(
    make_harness: MakeHarness,
) -> None:
    h = await make_harness([Roaming])
    async with h.engine.worker({"default": MANY}) as worker:
        parked = [await h.engine.start(Roaming) for _ in range(MANY)]
        for handle in parked:
            await handle.wait(timeout=10, until="settled")
        await is_ready(worker)
        await go(h.engine, parked)
        found = await results(parked)

    assert found == [0] * MANY


class Listening(Machine):
    """Awaits "go", and tells what is in its inbox then; or is busy."""

    @step
    async def start(self, ctx: Context[Any]) -> Await | Done:
        if not ctx.state:
            return Await("go", then=self.finish)
        await ctx.resources.gate.wait()
        return Done()

    @step
    async def finish(self, ctx: Context[Any]) -> Done:
        return Done([signal.name for signal in ctx.inbox])


async def test_who_is_to_wait_for_the_beginning_of_others_is_handed_what_has_come_by_then(
    make_harness: MakeHarness, runs: Runs
) -> None:
    h = await make_harness([Listening], resources=runs, **NO_POLL)
    async with h.engine.worker({"default": 3 * MANY}) as worker:
        parked = [await h.engine.start(Listening) for _ in range(MANY)]
        for handle in parked:
            await handle.wait(timeout=10, until="settled")
        await is_ready(worker)
        runs.gate.clear()
        busy = [await h.engine.start(Listening, {"busy": True})]
        await eventually(lambda: worker.running == 1)
        with armed("executor.begun", hold=True) as beginning:
            busy.append(await h.engine.start(Listening, {"busy": True}))
            await beginning.reached()
            assert worker._lanes["default"].is_beginning
            await go(h.engine, parked)
            await h.engine.signal_many([(handle.id, "note") for handle in parked[:3]])
            beginning.release()
        found = await results(parked)
        runs.gate.set()
        await results(busy)

    assert found == [["go", "note"]] * 3 + [["go"]] * (MANY - 3)
