"""How interactions are sent: bounded, at least once, and no transport's failure affects another."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from stepwell import Engine
from stepwell._worker.worker import Worker
from stepwell.errors import Undeliverable
from stepwell.testing import Harness, armed
from stepwell.transports import Transport
from tests.conftest import MakeHarness
from tests.features.interactions.askers import asker, each_asker
from tests.features.interactions.looks import SECRET
from tests.features.interactions.machines import Batch, Expense
from tests.support.transports import Recording
from tests.support.waiting import eventually

Hire = Callable[..., Awaitable[tuple[Engine, Worker]]]
SOON = timedelta(milliseconds=100)
NEVER = asyncio.Event  # none of these tests sets one
ONE = asker(transport="there", timeout=timedelta(hours=1), name="One")
EACH = each_asker(lambda: [1, 2, 3], transport="there", window=1)
WAITS = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
SAID = "interactions that need a token wait for a worker with token_keys"


@pytest.fixture
async def h(make_harness: MakeHarness) -> Harness:
    return await make_harness([Expense, Batch, ONE, EACH])


@pytest.fixture
async def hire(h: Harness) -> AsyncIterator[Hire]:
    """An engine with transports, and a worker of it: `engine, worker = await hire(there)`."""
    async with AsyncExitStack() as stack:

        async def hired(*transports: Transport, **settings: Any) -> tuple[Engine, Worker]:
            engine = await stack.enter_async_context(h.another_engine(transports=transports, reap=SOON))
            settings = {"poll": SOON, "max_poll": SOON, "drain_timeout": timedelta(0), **settings}
            return engine, await stack.enter_async_context(engine.worker(**settings))

        yield hired


async def statuses(h: Harness) -> list[str]:
    return [row["status"] for row in await h.sql("select status from stepwell.interactions order by unit_id, item")]


async def test_a_transport_has_no_more_in_flight_than_its_maximum(hire: Hire) -> None:
    gate = asyncio.Event()
    there = Recording(acts=[gate], reply=1, max_in_flight=3)
    engine, _ = await hire(there)

    batch = await engine.start(Batch, {"items": list(range(10)), "transport": "there"})
    await eventually(lambda: there.flying == 3)
    with armed("timers.ticked") as ticked:  # each of them wakes the dispatcher: more is to be sent
        await ticked.reached(4)
    gate.set()
    done = await batch.wait(timeout=30)

    assert done.status == "done"
    assert (there.most_flying, len(there.sent)) == (3, 10)


async def test_items_go_out_in_their_order_through_the_window(hire: Hire) -> None:
    there = Recording(reply=lambda dispatch: dispatch.request["number"], max_in_flight=1)
    engine, _ = await hire(there)

    batch = await engine.start(Batch, {"items": list(range(12)), "transport": "there", "window": 4})
    done = await batch.wait(timeout=30)

    assert [dispatch.index for dispatch in there.sent] == list(range(12))
    assert done.result == [[n, "completed", n] for n in range(12)]


async def test_a_failed_sending_is_repeated_with_the_same_ids(h: Harness, hire: Hire) -> None:
    there = Recording(acts=[ConnectionError("refused"), TimeoutError(), None], reply={"approved": True})
    engine, _ = await hire(there)

    expense = await engine.start(Expense, {"amount": 1, "transport": "there", "seconds": 60.0})
    done = await expense.wait(timeout=30)

    assert done.status == "done"
    assert [dispatch.attempt for dispatch in there.sent] == [1, 2, 3]
    same = {(d.interaction_id, d.correlation_id, d.idempotency_key, d.deadline) for d in there.sent}
    assert len(same) == 1
    [row] = await h.sql("select attempts, metadata, error from stepwell.interactions")
    assert tuple(row) == (3, '{"number": 3}', None)


async def test_a_sending_is_retried_until_its_time_has_ended(h: Harness, hire: Hire) -> None:
    there = Recording(acts=[ConnectionError("refused")])
    engine, _ = await hire(there)

    expense = await engine.start(Expense, {"amount": 1, "transport": "there", "seconds": 0.5})
    done = await expense.wait(timeout=30)
    tries = len(there.sent)
    [row] = await h.sql("select status, error from stepwell.interactions")

    assert (done.status, done.result["status"]) == ("done", "timed_out")
    assert tries > 1
    assert tuple(row) == ("timed_out", "ConnectionError: refused")


async def test_an_undeliverable_interaction_fails_at_once_and_wakes_its_instance(h: Harness, hire: Hire) -> None:
    there = Recording(acts=[Undeliverable("no such address")])
    engine, _ = await hire(there)

    one = await engine.start(ONE)
    done = await one.wait(timeout=30)

    assert (done.status, done.result) == ("done", "failed")
    assert len(there.sent) == 1
    reply = ONE.seen.replies.pop()
    assert (reply.status, reply.error, reply.interaction_id) == ("failed", "no such address", there.ids()[0])
    assert (reply.value, reply.is_completed) == (None, False)
    [row] = await h.sql("select status, error from stepwell.interactions")
    assert tuple(row) == ("failed", "no such address")


async def test_an_undeliverable_item_is_one_reply_of_many(hire: Hire) -> None:
    there = Recording(acts=[Undeliverable("not this one"), None], reply=1, max_in_flight=1)
    engine, _ = await hire(there)

    each = await engine.start(EACH)
    done = await each.wait(timeout=30)

    assert [status for _, status, _ in done.result] == ["failed", "completed", "completed"]
    replies, EACH.seen.replies = EACH.seen.replies, []
    assert [reply.error for reply in replies] == ["not this one", None, None]
    assert [reply.interaction_id for reply in replies] == there.ids()


@pytest.mark.parametrize("trouble", ["does not open", "hangs at opening", "fails to send", "hangs at sending"])
async def test_a_failing_transport_stops_no_other_transport(h: Harness, hire: Hire, trouble: str) -> None:
    stuck, fine = Recording("stuck", max_in_flight=2), Recording("fine", reply={"approved": True})
    match trouble:
        case "does not open":
            stuck.at_open = ConnectionError("no broker")
        case "hangs at opening":
            stuck.at_open = NEVER()
        case "fails to send":
            stuck.acts = [RuntimeError("broken")]
        case _:
            stuck.acts = [NEVER()]
    engine, worker = await hire(stuck, fine)

    lost = [await engine.start(Expense, {"transport": "stuck", "seconds": 0.4}) for _ in range(4)]
    await eventually(lambda: stuck.opened)
    good = [await engine.start(Expense, {"transport": "fine"}) for _ in range(4)]

    assert [(await e.wait(timeout=30)).result["status"] for e in good] == ["completed"] * 4
    assert [(await e.wait(timeout=30)).result["status"] for e in lost] == ["timed_out"] * 4
    assert worker.stats.reconciled == 0


async def test_a_sending_that_never_ends_fails_and_frees_its_slot(hire: Hire, caplog: pytest.LogCaptureFixture) -> None:
    """Digest, gap 18: dispatching for too long, in a live worker. There is one slot, and a sending hangs in it."""
    there = Recording(acts=[NEVER(), None], reply={"approved": True}, max_in_flight=1)
    there.send_timeout = SOON
    with caplog.at_level(logging.INFO, "stepwell"):
        engine, _ = await hire(there)

        expenses = [await engine.start(Expense, {"transport": "there"}) for _ in range(3)]
        done = [await expense.wait(timeout=30) for expense in expenses]

    assert [ended.result["status"] for ended in done] == ["completed"] * 3
    assert there.most_flying == 1
    hung = there.sent[0]
    assert [sent.attempt for sent in there.sent if sent.interaction_id == hung.interaction_id] == [1, 2]
    assert f"{hung.interaction_id} was not sent: stepwell.errors.SendFailed: it took longer than {SOON}" in caplog.text


async def test_a_transport_that_opens_late_sends_the_waiting_interactions(hire: Hire) -> None:
    there = Recording(reply={"approved": True})
    there.at_open = ConnectionError("no broker yet")
    engine, _ = await hire(there)
    expense = await engine.start(Expense, {"transport": "there"})
    await eventually(lambda: there.opened > 1)

    there.at_open = None

    assert (await expense.wait(timeout=30)).status == "done"


async def test_an_unstorable_report_of_a_transport_causes_no_second_sending(h: Harness, hire: Hire) -> None:
    class Odd(Recording):
        async def send(self, dispatch: Any, /) -> Any:
            await super().send(dispatch)
            return {"when": object()}

    there = Odd()
    engine, _ = await hire(there)

    await engine.start(Expense, {"transport": "there"})
    await eventually(lambda: is_all_out(h, 1))

    assert len(there.sent) == 1


@pytest.mark.parametrize("backoff", [RuntimeError("no idea"), timedelta(-1), "soon"], ids=str)
async def test_an_invalid_backoff_is_replaced_by_the_default(h: Harness, hire: Hire, backoff: Any) -> None:
    class Odd(Recording):
        def backoff(self, attempt: int, /) -> timedelta:
            if isinstance(backoff, Exception):
                raise backoff
            return backoff  # type: ignore[no-any-return]

    there = Odd(acts=[ConnectionError("refused")])
    engine, _ = await hire(there)
    await engine.start(Expense, {"transport": "there"})

    async def waits() -> list[Any]:
        # Not now(), which is when the read began, and may be before the record that it sees.
        look = "select next_at - clock_timestamp() as pause from stepwell.interactions where error is not null"
        return await h.sql(look)

    [row] = await eventually(waits)

    assert timedelta(0) < row["pause"] <= timedelta(seconds=1)


async def test_a_cancellation_inside_the_transport_is_a_failed_sending(hire: Hire) -> None:
    there = Recording(acts=[asyncio.CancelledError(), None], reply={"approved": True})
    engine, _ = await hire(there)

    expense = await engine.start(Expense, {"transport": "there"})

    assert (await expense.wait(timeout=30)).status == "done"
    assert len(there.sent) == 2


async def test_a_stopping_worker_releases_interactions_and_closes_its_transport(h: Harness) -> None:
    there = Recording(acts=[NEVER()], max_in_flight=2)
    async with h.another_engine(transports=[there]) as engine:
        async with engine.worker(drain_timeout=timedelta(0)):
            await engine.start(Batch, {"items": [1, 2, 3, 4], "transport": "there"})
            await eventually(lambda: there.flying == 2)

        assert await statuses(h) == ["waiting"] * 4
        assert (len(there.sent), there.flying, there.closed) == (2, 0, 1)
        [row] = await h.sql("select count(*) as held from stepwell.interactions where worker_id is not null")
        assert row["held"] == 0


async def test_a_stopping_worker_waits_for_sendings_and_records_them(h: Harness) -> None:
    gate = asyncio.Event()
    there = Recording(acts=[gate], max_in_flight=2)
    async with h.another_engine(transports=[there]) as engine:
        async with engine.worker(drain_timeout=timedelta(seconds=30)) as worker:
            await engine.start(Batch, {"items": [1, 2, 3], "transport": "there"})
            await eventually(lambda: there.flying == 2)
            stopping = asyncio.create_task(worker.stop())
            await eventually(lambda: worker._graph.dispatch._dispatchers["there"]._is_draining)
            gate.set()
            await stopping

        assert await statuses(h) == ["dispatched", "dispatched", "waiting"]


async def test_a_transport_that_does_not_close_delays_a_worker_only_briefly(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stubborn(Recording):
        async def close(self) -> None:
            await NEVER().wait()

    monkeypatch.setattr("stepwell._dispatch.service.CLOSE_TIMEOUT", 0.05)
    there = Stubborn(reply={"approved": True})

    async with asyncio.timeout(20), h.another_engine(transports=[there]) as engine, engine.worker():
        expense = await engine.start(Expense, {"transport": "there"})
        ended = await expense.wait(timeout=15)

    assert ended.status == "done"


async def test_sendings_that_end_while_others_are_recorded_are_recorded_too(h: Harness, hire: Hire) -> None:
    gate = asyncio.Event()
    there = Recording(acts=[None, gate])
    engine, _ = await hire(there)

    with armed("dispatcher.sent", hold=True) as sent:
        await engine.start(Batch, {"items": [1, 2], "transport": "there"})
        await sent.reached(1)
        async with holding(h, "lock table stepwell.interactions in share mode"):
            sent.release()
            await eventually(lambda: h.sql(WAITS))
            gate.set()
            await sent.reached(2)

    await eventually(lambda: is_all_out(h, 2))


async def is_all_out(h: Harness, number: int) -> bool:
    return (await statuses(h)) == ["dispatched"] * number


async def test_interactions_claimed_before_an_outage_are_released_and_sent(
    h: Harness, hire: Hire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim is committed, its reply is lost: a living worker must not keep a claim that it does not know of."""
    there = Recording(reply={"approved": True})
    engine, worker = await hire(there)
    lost = []

    async def lose(facts: dict[str, Any]) -> None:
        if not lost:
            lost.append(facts["ids"])
            raise ConnectionError("the answer was lost")

    monkeypatch.setitem(__import__("stepwell._process.probes", fromlist=["hooks"]).hooks, "dispatcher.claimed", lose)
    expense = await engine.start(Expense, {"transport": "there"})

    assert (await expense.wait(timeout=30)).status == "done"
    assert [dispatch.attempt for dispatch in there.sent] == [2]
    assert worker.stats.sent_again == 0


async def test_a_locked_instance_does_not_delay_other_failed_sendings(h: Harness, hire: Hire) -> None:
    class Nowhere(Recording):
        async def send(self, dispatch: Any, /) -> Any:
            await super().send(dispatch)
            raise Undeliverable("nowhere")

    gate = asyncio.Event()
    there = Nowhere(acts=[gate])
    engine, _ = await hire(there)
    held = await engine.start(Expense, {"transport": "there"})
    await eventually(lambda: there.flying == 1)

    async with holding(h, f"select from stepwell.instances where id = {held.id} for no key update"):
        gate.set()
        other = await engine.start(Expense, {"transport": "there"})
        assert (await other.wait(timeout=20)).result["status"] == "failed"
        assert (await held.get()).status == "awaiting_external"

    assert (await held.wait(timeout=30)).result["status"] == "failed"


async def test_a_worker_without_keys_leaves_token_interactions_to_others(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """It does not claim what it cannot sign: interactions without a token pass it, and the log says so once."""
    h = await make_harness([Expense], token_keys={"new": SECRET})
    shut, bare, keyed = Recording(), Recording(), Recording()
    shut.at_open = ConnectionError("not yet")
    async with h.another_engine(transports=[shut]) as asking, asking.worker(drain_timeout=timedelta(0)):
        guarded, plain = [await asking.start(Expense, {"transport": "there", "token": t}) for t in (True, False)]
        for expense in (guarded, plain):
            await expense.wait(until="settled", timeout=30)
    before = await h.sql("select * from stepwell.interactions where instance_id = $1", guarded.id)

    async with (
        h.another_engine(transports=[bare], token_keys=None) as engine,
        engine.worker(poll=SOON, max_poll=SOON),
    ):
        with armed("timers.ticked") as ticked:
            await eventually(lambda: SAID in caplog.text)
            await ticked.reached(len(ticked.facts) + 3)
        await eventually(lambda: bare.sent)
        after = await h.sql("select * from stepwell.interactions where instance_id = $1", guarded.id)
    async with h.another_engine(transports=[keyed]) as engine, engine.worker():
        await eventually(lambda: keyed.sent)

    assert [(sent.instance_id, sent.token) for sent in bare.sent] == [(plain.id, None)]
    assert after == before
    assert (before[0]["status"], before[0]["attempts"]) == ("waiting", 0)
    assert [(sent.instance_id, sent.attempt, sent.token is None) for sent in keyed.sent] == [(guarded.id, 1, False)]
    assert caplog.text.count(SAID) == 1


@asynccontextmanager
async def holding(h: Harness, lock: str) -> AsyncIterator[None]:
    """Another session's transaction that holds a lock, for the length of the block."""
    connection = await asyncpg.connect(h.url)
    try:
        async with connection.transaction():
            await connection.execute(lock)
            yield
    finally:
        await connection.close()
