"""Hooks: `engine.on(event)` reports what has happened, and cannot change or delay it."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import stepwell.engine
from stepwell import (
    Ask,
    Await,
    Context,
    Done,
    Engine,
    Event,
    InvalidInput,
    Machine,
    Next,
    Retry,
    Spawn,
    Status,
    Stop,
    step,
)
from stepwell._hooks import runner
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually
from tests.worker.dead_workers import abandon

NOWHERE = "postgresql://postgres@127.0.0.1:1/nowhere"


class Leaf(Machine, queue="leaves"):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("leaf")


class Tour(Machine, version=3):
    """Has every outcome once."""

    @step
    async def start(self, ctx: Context[Any]) -> Next:
        if ctx.attempt == 0:
            raise ConnectionError("first")
        return Next(self.wait, queue="leaves")

    @step
    async def wait(self, ctx: Context[Any]) -> Await:
        return Await("go", then=self.fan)

    @step
    async def fan(self, ctx: Context[Any]) -> Spawn:
        return Spawn([Leaf.child(key="leaf"), Leaf.child(key="taken")], then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Stop:
        return Stop("enough")

    async def handle(self, error: Exception, ctx: Context[Any]) -> Retry:
        return Retry()


class Late(Machine):
    """Its first run loses its row while it runs; what it returns is stale."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        runs: list[int] = ctx.resources["runs"]
        runs.append(ctx.id)
        if len(runs) == 1:
            await ctx.resources["harness"].sql("update stepwell.instances set fence = fence + 5 where id = $1", ctx.id)
        return Done(len(runs))


ALL = [Leaf, Tour, Late]


async def hooking(make_harness: MakeHarness, **settings: Any) -> Harness:
    resources: dict[str, Any] = {"runs": []}
    harness = await make_harness(ALL, resources=resources, **settings)
    resources["harness"] = harness
    return harness


def hear(engine: Engine, events: Any = "all") -> list[Event]:
    """A list that fills with the reported events."""
    heard: list[Event] = []
    engine.on(events, heard.append)
    return heard


async def test_the_started_event_fires_for_every_entry_point_and_for_children(make_harness: MakeHarness) -> None:
    """Hooks: started, by start, start_many, signal_or_start and a spawn; a duplicate starts nothing."""
    h = await hooking(make_harness)
    heard = hear(h.engine, "started")
    tour = await h.engine.start(Tour, key="tour", tenant="acme")
    await h.engine.start_many([Leaf.child(key="taken", tenant="acme", delay=timedelta(hours=1)), (Leaf, {})])
    await h.engine.signal_or_start(Leaf, key="leaf", signal="x")
    await h.engine.start(Leaf, key="leaf", if_exists="return")
    await h.engine.signal_or_start(Leaf, key="leaf", signal="x")
    await h.engine.signal("tour", "go", tenant="acme")

    async with h.engine.worker({"default": 1, "leaves": 1}):
        await tour.wait(timeout=30)
        await eventually(lambda: len(heard) == 5)

    before = datetime.now(UTC) - timedelta(minutes=1)
    assert [(e.machine, e.key, e.tenant, e.parent_id) for e in heard] == [
        ("Tour", "tour", "acme", None), ("Leaf", "taken", "acme", None), ("Leaf", None, "", None),
        ("Leaf", "leaf", "", None), ("Leaf", "leaf", "acme", tour.id),
    ]  # fmt: skip
    first = heard[0]
    assert (first.name, first.id, first.version, first.step, first.queue) == ("started", tour.id, 3, "start", "default")
    assert (first.status, first.attempt, first.outcome, first.worker_id) == (Status.RUNNABLE, 0, None, None)
    assert first.at > before


async def test_the_committed_event_shows_each_outcome_and_failed_the_end(make_harness: MakeHarness) -> None:
    """Hooks: committed once per durable outcome, in their order; failed once, with the reason."""
    h = await hooking(make_harness)
    heard = hear(h.engine, ["failed", "committed"])
    tour = await h.engine.start(Tour, key="tour")
    await h.engine.signal("tour", "go")

    async with h.engine.worker({"default": 1, "leaves": 1}) as worker:
        await tour.wait(timeout=30)
        await eventually(lambda: len([event for event in heard if event.machine == "Tour"]) == 6)
        worker_id = worker.id

    told = [e for e in heard if e.id == tour.id]
    assert [(e.name, e.step, e.attempt, e.outcome, e.next_step, e.status) for e in told] == [
        ("committed", "start", 0, "Retry", "start", "runnable"),
        ("committed", "start", 1, "Next", "wait", "runnable"),
        ("committed", "wait", 0, "Await", "fan", "awaiting_signal"),
        ("committed", "fan", 0, "Spawn", "end", "awaiting_children"),
        ("committed", "end", 0, "Stop", None, "failed"),
        ("failed", "end", 0, "Stop", None, "failed"),
    ]
    assert (told[0].error_type, told[0].error_message) == ("ConnectionError", "first")
    assert (told[5].error_type, told[5].error_message, told[5].queue) == ("Stop", "enough", "leaves")
    assert {(e.key, e.tenant, e.version, e.worker_id) for e in told} == {("tour", "", 3, worker_id)}
    assert {(e.outcome, e.parent_id) for e in heard if e.machine == "Leaf"} == {("Done", tour.id)}


class Growing(Machine):
    """Starts small or large, and asks with a large state."""

    @step
    async def start(self, ctx: Context[Any]) -> Ask:
        return Ask("manual", {}, reply=bool, then=self.end, state={"note": "x" * 2_000})

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done("y" * 3_000, state={})


async def test_the_large_event_shows_values_near_their_limit(make_harness: MakeHarness) -> None:
    """Hooks: the soft limit. A value above `large_payload` is reported with its size, each time it is stored."""
    h = await make_harness([Growing], large_payload=1_000)
    heard = hear(h.engine, ["large", "committed"])

    async with h.engine.worker():
        await h.engine.start(Growing)
        grown = await h.engine.start(Growing, {"note": "z" * 1_500})
        await grown.wait(timeout=30, until="settled")
        [question] = [q for q in (await h.engine.interactions.pending()).items if q.instance_id == grown.id]
        await h.engine.complete(interaction=question.id, reply=True)
        await grown.wait(timeout=30)
        await eventually(lambda: len([event for event in heard if event.id == grown.id]) == 5)

    told = [event for event in heard if event.id == grown.id]
    assert [(e.name, e.step, e.outcome, e.size) for e in told if e.name == "large"] == [
        ("large", "start", None, 1_511), ("large", "start", "Ask", 2_013), ("large", "end", "Done", 3_004),
    ]  # fmt: skip
    assert [(e.outcome, e.status) for e in told if e.name == "committed"] == [
        ("Ask", "awaiting_external"), ("Done", "done"),
    ]  # fmt: skip


async def test_the_stale_event_shows_which_outcome_was_dropped(make_harness: MakeHarness) -> None:
    """Hooks: stale; nothing of that outcome is reported as committed."""
    h = await hooking(make_harness, heartbeat=timedelta(seconds=20))
    heard = hear(h.engine, ["stale", "committed"])
    late = await h.engine.start(Late, key="late")

    async with h.engine.worker() as worker:
        await eventually(lambda: heard)
        worker_id = worker.id

    [event] = heard
    assert (event.name, event.id, event.key, event.step, event.attempt) == ("stale", late.id, "late", "start", 0)
    assert (event.outcome, event.status, event.next_step, event.worker_id) == ("Done", None, None, worker_id)


async def test_the_reaped_event_shows_the_worker_and_failed_the_crash_loop(make_harness: MakeHarness) -> None:
    """Hooks: reaped; and failed, of what ended its workers max_crashes times."""
    h = await hooking(make_harness, max_crashes=2)
    heard = hear(h.engine, ["reaped", "failed"])
    first, second = await h.engine.start(Leaf, key="first"), await h.engine.start(Leaf, key="second")
    await h.sql("update stepwell.instances set crashes = 1 where id = $1", second.id)
    dead = await abandon(h, [first, second])

    async with h.engine.worker({"leaves": 2}):
        await first.result(timeout=30)
        await eventually(lambda: len(heard) == 3)

    heard.sort(key=lambda event: (event.name == "failed", event.id))
    assert [(e.name, e.key, e.status, e.attempt, e.worker_id, e.machine, e.step) for e in heard] == [
        ("reaped", "first", "runnable", 1, dead, "Leaf", "start"),
        ("reaped", "second", "failed", 1, dead, "Leaf", "start"),
        ("failed", "second", "failed", 1, dead, "Leaf", "start"),
    ]
    message = "step 'start' ended its worker 2 times in a row (max_crashes)"
    assert (heard[2].error_type, heard[2].error_message) == ("CrashLoop", message)
    failure = (await second.get()).error
    assert failure is not None
    assert (failure.type, failure.message) == ("CrashLoop", message)


async def test_a_callback_that_raises_or_changes_its_event_has_no_effect(
    make_harness: MakeHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """Hooks: an error of a callback is logged with its name; the others are called, the engine continues."""
    h = await hooking(make_harness)
    heard: list[Event] = []

    @h.engine.on("committed")
    def raises(event: Event) -> None:
        raise SystemExit(3)

    @h.engine.on("committed")
    def meddles(event: Event) -> None:
        event.status = Status.FAILED  # type: ignore[misc]  # the point of the test

    @h.engine.on("committed")
    async def listens(event: Event) -> None:
        await asyncio.sleep(0)
        heard.append(event)

    async with h.engine.worker():
        results = [await (await h.engine.start(Leaf, queue="default")).result(timeout=30) for _ in range(2)]
        await eventually(lambda: len(heard) == 2)

    assert (results, [event.status for event in heard]) == (["leaf"] * 2, [Status.DONE] * 2)
    messages = [record.message for record in caplog.records if record.name == "stepwell" and record.exc_info]
    assert [message.partition(" raised")[0].rpartition(".")[2] for message in messages] == ["raises", "meddles"] * 2


async def test_a_callback_that_never_returns_delays_nothing(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Hooks: starts, steps and commits continue, and the engine closes; excess events are dropped, and logged once."""
    monkeypatch.setattr(runner, "MOST_QUEUED", 3)
    monkeypatch.setattr(stepwell.engine, "CLOSING", 0.05)
    h = await hooking(make_harness)
    gate, blocked = threading.Event(), threading.Event()
    calls: list[Event] = []

    def blocks(event: Event) -> None:
        calls.append(event)
        blocked.set()
        gate.wait()

    async with h.another_engine() as engine:
        engine.on("all", blocks)
        first = await engine.start(Leaf)
        assert await asyncio.to_thread(blocked.wait, 30)
        async with engine.worker({"leaves": 10}) as worker:
            rest = await engine.start_many([Leaf.child({}) for _ in range(9)])
            results = [await handle.result(timeout=30) for handle in (first, *rest)]  # type: ignore[union-attr]
        assert results == ["leaf"] * 10
        assert worker.stats.committed == 10
        assert engine.dropped_events == 19 - 3  # ten started, ten committed; one is being delivered, three wait
        assert len(calls) == 1
    gate.set()

    said = [record.message for record in caplog.records if "hooks:" in record.message]
    assert len(said) == 2
    assert said[0].startswith("hooks: callbacks are too slow, 3 events wait; dropping")
    assert said[1] == "hooks: a callback did not return within 0.1 s; dropped 3 events"


async def test_a_closing_engine_delivers_its_queued_events(make_harness: MakeHarness) -> None:
    """Hooks: events just before the end are delivered, and an engine opened again continues to deliver."""
    h = await hooking(make_harness)
    engine = h.another_engine()
    heard = hear(engine, "started")

    async with engine:
        await engine.start_many([Leaf.child({}) for _ in range(500)])
    told = len(heard)
    async with engine:
        await engine.start(Leaf)

    assert (told, len(heard)) == (500, 501)


async def test_hooks_of_two_engines_do_not_mix(make_harness: MakeHarness) -> None:
    """Hooks: an engine reports events of its own calls and its own workers."""
    h = await hooking(make_harness)
    async with h.another_engine() as other:
        here, there = hear(h.engine, ["started", "committed"]), hear(other, ["started", "committed"])
        async with other.worker({"leaves": 1}):
            leaf = await h.engine.start(Leaf)
            await leaf.result(timeout=30)
            await eventually(lambda: here and there)

    assert ([event.name for event in here], [event.name for event in there]) == (["started"], ["committed"])


async def test_hooks_receive_events_of_blocking_code(make_harness: MakeHarness) -> None:
    """Hooks: `engine.sync` has the hooks of its engine, and closing it takes none of them off."""
    h = await hooking(make_harness)
    engine = h.another_engine()
    heard: list[Event] = []
    engine.sync.on("started", heard.append)

    for _ in range(2):
        await asyncio.to_thread(engine.sync.start, Leaf)
        await asyncio.to_thread(engine.sync.close)

    assert [event.machine for event in heard] == ["Leaf", "Leaf"]


async def test_a_hook_can_be_removed(make_harness: MakeHarness) -> None:
    """Hooks: by what `on` returned, or by the callback; hooked twice, it is still called once."""
    h = await hooking(make_harness)
    first: list[Event] = []
    second: list[Event] = []
    last = hear(h.engine, "started")
    tell_first, tell_second = first.append, second.append
    off = h.engine.on("started", tell_first)
    h.engine.on("all", tell_second)
    h.engine.on(["started", "failed"], tell_second)
    await h.engine.start(Leaf)
    await eventually(lambda: first and second and last)
    off()
    h.engine.off(tell_second)

    await h.engine.start(Leaf)
    await eventually(lambda: len(last) == 2)

    assert (len(first), len(second)) == (1, 1)


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ("faild", "event: 'faild' is not an event; did you mean 'failed'?"),
        ("x", "(events: started, committed, failed, stale, reaped, limit_wait, large)"),
        (["started", "comitted"], "did you mean 'committed'?"),
        ([], "expected the name of an event"),
        (42, "expected the name of an event"),
        ([42], "42 is not an event"),
    ],
)
def test_an_unknown_event_is_refused_when_a_hook_is_added(events: Any, words: str) -> None:
    engine = Engine(NOWHERE)
    for hook in (lambda: engine.on(events), lambda: engine.on(events, logging.info)):
        with pytest.raises(InvalidInput) as caught:
            hook()
        assert words in str(caught.value)


def test_an_uncallable_hook_is_refused_and_limit_wait_is_accepted() -> None:
    engine = Engine(NOWHERE)

    with pytest.raises(InvalidInput, match="callback: expected a function of one event, got 42"):
        engine.on("failed", 42)  # type: ignore[call-overload]

    engine.on("limit_wait", logging.info)
