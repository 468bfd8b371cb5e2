"""SIGKILL at every point between inserting an interaction and resuming by its end: asked once, completed once.

All processes killed at one point die at once, each with a process, a queue and a transport of its own. One worker, in
this process, continues their work.
"""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import asyncpg
import pytest

from stepwell import Handle
from stepwell._worker.worker import Worker
from stepwell.testing import POINTS, Harness
from tests.crash.conftest import StartWorker
from tests.features.interactions.machines import Batch, Expense
from tests.support.ask_process import (
    CHUNK,
    CREATE_BOOKINGS,
    CREATE_SENDINGS,
    KEYS,
    MACHINES,
    Booking,
    Noting,
    reply_to,
)
from tests.support.asked import problems_in
from tests.support.processes import WorkerProcess
from tests.support.waiting import eventually

SOON = timedelta(milliseconds=200)
MINUTE = timedelta(minutes=1)
ITEMS = 2 * CHUNK + 1
MODULE = "ask_process"
PATIENCE = 30


class Shape(NamedTuple):
    """One way to ask: how its interactions end without a kill, and what becomes of the instance then."""

    machine: Any
    state: dict[str, Any]
    ends: str = "completed"
    result: Any = None  # None: it fails
    questions: int = 1
    world: str = "answers"


def expense(status: str, approved: bool | None) -> dict[str, Any]:
    kind = "NoneType" if approved is None else "Decision"
    return {"status": status, "approved": approved, "actor": None, "type": kind}


EACH = [[n, "completed", 100 + n] for n in range(ITEMS)]
SHAPES = {
    "plain": Shape(Expense, {}, result=expense("completed", True)),  # its completion takes the fast path
    "token": Shape(Expense, {"token": True}, result=expense("completed", True)),
    "transactional": Shape(Booking, {}, result=100),
    "each": Shape(
        Batch, {"items": list(range(ITEMS)), "window": ITEMS - 2}, result=EACH, questions=ITEMS
    ),  # several are claimed at a time
    "late": Shape(Expense, {"seconds": 0.1}, "timed_out", expense("timed_out", None), world="silent"),
    "late, fails": Shape(Expense, {"seconds": 0.1, "on_timeout": "fail"}, "timed_out", world="silent"),
    "undeliverable": Shape(Expense, {}, "failed", expense("failed", None), world="is missing"),
}


class Kill(NamedTuple):
    """Which process is killed at a point, at which of its visits there, and what it has inserted by then."""

    shape: str
    nth: int = 1
    asked: int = 0
    attempts: Sequence[int] | None = (1,)  # of its dispatches, in the end; None: depends on timing


ASKING = {
    "claimer.before_claim": [Kill("plain")],
    "claimer.claimed": [Kill("plain")],
    "executor.begun": [Kill("plain"), Kill("transactional")],
    "executor.returned": [Kill("plain"), Kill("token"), Kill("each", asked=ITEMS)],
    "ask_each.appended": [Kill("each", nth, min(nth * CHUNK, ITEMS)) for nth in (1, 2, 3)],
    "transactional.begun": [Kill("transactional")],
    "transactional.returned": [Kill("transactional")],
    "transactional.written": [Kill("transactional")],
    # Committed, an interaction may be visible and claimed by the timers before its worker is killed.
    "transactional.committed": [Kill("transactional", asked=1, attempts=None)],
    "committer.before_commit": [Kill("plain"), Kill("token"), Kill("each", asked=ITEMS)],
    "committer.committed": [
        Kill("plain", asked=1, attempts=None),
        Kill("token", asked=1, attempts=None),
        Kill("each", asked=ITEMS),
    ],
    "dispatcher.claimed": [
        Kill("plain", asked=1, attempts=(2,)),
        Kill("token", asked=1, attempts=(2,)),
        Kill("transactional", asked=1, attempts=(2,)),
        Kill("each", attempts=None),  # a chunk of them
    ],
    "dispatcher.sent": [
        Kill("plain", asked=1, attempts=(1, 2)),
        Kill("token", asked=1, attempts=(1, 2)),
        Kill("each", attempts=None),
        Kill("each", nth=3, attempts=None),
    ],
    "dispatcher.recorded": [Kill("plain", asked=1), Kill("token", asked=1), Kill("each", attempts=None)],
}
"""Between the claim of a step that asks and the note that its questions are sent; nobody answers yet."""

ANSWERING = {"complete.found": "dispatched", "complete.admitted": "completed"}
"""While an answer is brought in: how its question stands by then."""

ONE = [Kill("plain", 2), Kill("late", 2), Kill("late, fails", 2), Kill("undeliverable", 2)]
RESUMING = {
    "claimer.claimed": [*ONE, Kill("each", 2), Kill("token", 2), Kill("transactional", 2)],
    "executor.begun": [*ONE, Kill("each", 2)],
    "executor.returned": [*ONE, Kill("each", 2)],
    # Where completions arrive while items are asked about, a park may be retried any number of times. And a
    # transactional step does not reach it.
    "committer.before_commit": [*ONE, Kill("transactional", 1)],
    "committer.committed": [*ONE, Kill("each", 2)],
}
"""Between the end of a question, by an answer, by its deadline or because it can not be sent, and what follows it."""

ELSEWHERE = {
    "heartbeat.beaten": "a beat writes nothing but the worker's own row",
    "limiter.admitted": "it claims under a limit, before a step runs, as `claimer.claimed` does",
    "reaper.ticked": "a look of the reaper has ended; `reaper.reaped` is within one",
    "pruner.pruned": "it deletes what has ended, after all questions of that",
    "reconciler.cleaned": "tests/crash/pipelines/test_large_units.py kills there: a page of a large unit is closed",
    "settle.admitted": "of brokers: tests/features/transports/brokers/promises.py kills there, for each of them",
    "fair_migration.moved": "it moves rows that wait for a worker, and knows no questions",
}
"""Points at which no asker is killed here, and why."""


def test_every_probe_point_is_killed_at_or_has_a_reason_not_to_be() -> None:
    """A new point has to be put into one of these."""
    assert set(POINTS) == {*ASKING, *ANSWERING, *RESUMING, *RECOVERING, *ELSEWHERE}
    assert not {*ASKING, *ANSWERING, *RESUMING, *RECOVERING} & {*ELSEWHERE}


@pytest.fixture
async def h() -> AsyncIterator[Harness]:
    async with Harness(MACHINES, token_keys=KEYS) as harness:
        await harness.sql(CREATE_SENDINGS)
        await harness.sql(CREATE_BOOKINGS)
        yield harness
        await harness.sql("drop table public.sendings")
        await harness.sql("drop table public.bookings")


@dataclass
class Life:
    """One instance, and the process that is killed with it."""

    h: Harness
    shape: Shape
    number: int
    handle: Handle[Any]
    killed: WorkerProcess | None = None

    @property
    def queue(self) -> str:
        return f"queue{self.number}"

    @property
    def transport(self) -> str:
        return f"there{self.number}"

    async def die(self, start_worker: StartWorker, point: str, nth: int = 1, *, world: str = "silent") -> None:
        """Run a worker for this instance alone, until it is killed."""
        options = ["--queue", self.queue, "--transport", self.transport, "--world", world]
        self.killed = await start_worker(self.h.url, module=MODULE, crash=point, nth=nth, options=options)

    async def is_dead(self) -> bool:
        assert self.killed is not None
        return await self.killed.ended() == -signal.SIGKILL

    async def questions(self) -> list[tuple[str, str]]:
        """Id and status, in item order."""
        rows = await self.h.sql(
            "select id::text, status from stepwell.interactions where instance_id = $1 order by unit_id, item",
            self.handle.id,
        )
        return [tuple(row) for row in rows]

    async def sendings(self) -> list[tuple[str, int]]:
        """(interaction, attempt) of every dispatch."""
        rows = await self.h.sql(
            "select question::text, attempt from public.sendings s join stepwell.interactions q on q.id = s.question "
            "where q.instance_id = $1 order by s.number", self.handle.id,
        )  # fmt: skip
        return [tuple(row) for row in rows]

    async def bookings(self) -> int:
        return len(await self.h.sql("select from public.bookings where instance = $1", self.handle.id))

    async def assert_whole(self) -> None:
        """What holds whichever process was killed: the instance ended as expected, each interaction once."""
        ended = await self.handle.get()
        expected = "failed" if self.shape.result is None else "done"
        assert (ended.status, ended.result) == (expected, self.shape.result), self.shape
        if self.shape.result is None:
            assert ended.error is not None
            assert ended.error.type == "AwaitTimeout"
        assert [status for _, status in await self.questions()] == [self.shape.ends] * self.shape.questions
        units = await self.h.sql("select visit from stepwell.await_units where instance_id = $1", self.handle.id)
        assert [row["visit"] for row in units] == [1]
        assert await self.bookings() == (self.shape.machine is Booking)


async def begun(h: Harness, shape: str, number: int = 0, **changes: Any) -> Life:
    """An instance that will ask."""
    made = SHAPES[shape]
    life = Life(h, made, number, None)  # type: ignore[arg-type]  # in a moment
    state = {**made.state, "transport": life.transport, **changes}
    life.handle = await h.engine.start(made.machine, state, queue=life.queue)
    return life


@asynccontextmanager
async def survivor(h: Harness, lives: Sequence[Life]) -> AsyncIterator[Worker]:
    """A worker in this process, which continues after the killed ones. It needs no repair."""
    transports = [Noting(h.url, life.transport) for life in lives]
    queues = {life.queue: 10 for life in lives}
    async with h.another_engine(transports=transports, reap=SOON) as engine, engine.worker(queues) as worker:
        yield worker
        connection = await asyncpg.connect(h.url)
        assert await problems_in(connection) == []
        await connection.close()
        assert worker.stats.reconciled == 0


async def answered(h: Harness, lives: Sequence[Life]) -> None:
    """Complete all open interactions until all instances have ended."""
    ended = asyncio.gather(*(life.handle.wait(timeout=PATIENCE) for life in lives))
    while not ended.done():
        await answer(h)
        await asyncio.wait([ended], timeout=0.02)
    await ended


async def answer(h: Harness) -> None:
    """Complete all open interactions."""
    for question in (await h.engine.interactions.pending()).items:
        if question.status == "dispatched":
            await answer_one(h, question.id)


async def answer_one(h: Harness, id_: str) -> Any:
    question = await h.engine.interactions.get(id_)
    token = await h.engine.interactions.token(id_) if question.requires_token else None
    return await h.engine.complete(interaction=id_, reply=reply_to(question.request), token=token)


@pytest.mark.parametrize("point", ASKING)
async def test_a_worker_killed_after_asking_asks_once_and_sends_at_least_once(
    h: Harness, start_worker: StartWorker, point: str
) -> None:
    """Gap 3: a crash between the claim of an interaction and its dispatch sends again.

    Writes of a transactional step exist if, and only if, its interaction does.
    """
    kills = ASKING[point]
    lives = [await begun(h, kill.shape, number) for number, kill in enumerate(kills)]
    for life, kill in zip(lives, kills, strict=True):
        await life.die(start_worker, point, kill.nth)
    before: list[list[tuple[str, str]]] = []
    for life, kill in zip(lives, kills, strict=True):
        assert await life.is_dead()
        before.append(await life.questions())
        if kill.attempts is not None:
            assert len(before[-1]) == kill.asked
            assert await life.bookings() == (kill.asked and life.shape.machine is Booking)

    async with survivor(h, lives):
        await answered(h, lives)

    for life, kill, asked in zip(lives, kills, before, strict=True):
        await life.assert_whole()
        questions, sent = await life.questions(), await life.sendings()
        assert [id_ for id_, _ in questions][: len(asked)] == [id_ for id_, _ in asked]
        times = Counter(id_ for id_, _ in sent)
        if kill.attempts is None or life.shape.questions > 1:
            assert (set(times), max(times.values()) <= 2) == ({id_ for id_, _ in questions}, True)
        else:
            assert tuple(attempt for _, attempt in sent) == tuple(kill.attempts)


@pytest.mark.parametrize("point", ANSWERING)
async def test_a_process_killed_while_completing_has_completed_or_has_not(
    h: Harness, start_worker: StartWorker, point: str
) -> None:
    """Scenario 18: on the fast path, with a token, and of items; the same completion, repeated, shows which it was."""
    lives = [await begun(h, shape, number) for number, shape in enumerate(("plain", "token", "each"))]
    async with survivor(h, lives) as worker:
        chosen = [await first_question(life) for life in lives]
        answering = [
            await start_worker(h.url, module=MODULE, crash=point, options=["--answer", question]) for question in chosen
        ]
        for process in answering:
            assert await process.ended() == -signal.SIGKILL
        for life, question in zip(lives, chosen, strict=True):
            assert dict(await life.questions())[question] == ANSWERING[point]
            again = await answer_one(h, question)
            assert again.is_duplicate is (point == "complete.admitted")
        await answered(h, lives)
        assert worker.stats.steps == 2 * len(lives)

    for life in lives:
        await life.assert_whole()


async def first_question(life: Life) -> str:
    """The first one, once it is sent."""

    async def out() -> list[str]:
        return [id_ for id_, status in await life.questions() if status == "dispatched"]

    return (await eventually(out))[0]


@pytest.mark.parametrize("point", RESUMING)
async def test_after_a_worker_is_killed_past_a_completion_no_one_is_asked_again(
    h: Harness, start_worker: StartWorker, point: str
) -> None:
    """By a completion, by a timeout, or because it cannot be sent. Scenario 24: the end of an interaction is kept."""
    kills = RESUMING[point]
    lives = [await begun(h, kill.shape, number) for number, kill in enumerate(kills)]
    for life, kill in zip(lives, kills, strict=True):
        await life.die(start_worker, point, kill.nth, world=life.shape.world)
    before = []
    for life in lives:
        assert await life.is_dead()
        before.append((await life.questions(), await life.sendings()))
        assert [status for _, status in before[-1][0]] == [life.shape.ends] * life.shape.questions

    async with survivor(h, lives):
        for life in lives:
            await life.handle.wait(timeout=PATIENCE)

    for life, left in zip(lives, before, strict=True):
        await life.assert_whole()
        assert (await life.questions(), await life.sendings()) == left


async def is_late(h: Harness, start_worker: StartWorker) -> tuple[list[Life], dict[str, Any]]:
    """Deadlines have passed while no worker lived: the next worker ends the interactions."""
    lives = [await begun(h, shape, number, seconds=30) for number, shape in enumerate(("late", "late, fails"))]
    async with survivor(h, lives):
        for life in lives:
            await first_question(life)
    await h.advance(MINUTE)
    return lives, {}


async def was_not_sent(h: Harness, start_worker: StartWorker) -> tuple[list[Life], dict[str, Any]]:
    """A worker has died with interactions that it was about to send."""
    life = await begun(h, "plain")
    await life.die(start_worker, "dispatcher.claimed")
    assert await life.is_dead()
    return [life], {}


async def was_resumed(h: Harness, start_worker: StartWorker) -> tuple[list[Life], dict[str, Any]]:
    """A worker has died, on another host, in the step that continues by a reply; its lease has expired."""
    life = await begun(h, "plain")
    await life.die(start_worker, "executor.begun", 2, world="answers")
    assert await life.is_dead()
    await h.sql("update stepwell.workers set host = 'elsewhere', lease_until = now() - interval '1 hour'")
    return [life], {"lease": 0.9, "heartbeat": 0.3, "reap": 0.1}


Prepare = Callable[[Harness, StartWorker], Awaitable[tuple[list[Life], dict[str, Any]]]]
RECOVERING: dict[str, tuple[Prepare, str]] = {
    "timers.ticked": (is_late, "timed_out"),
    "reconciler.looked": (was_not_sent, "waiting"),
    "reaper.reaped": (was_resumed, "completed"),
}
"""While somebody looks after what time or the dead have left, and how the questions stand by then."""


@pytest.mark.parametrize("point", RECOVERING)
async def test_a_reconciler_killed_at_work_is_followed_by_one_that_finishes_it(
    h: Harness, start_worker: StartWorker, point: str
) -> None:
    prepare, status = RECOVERING[point]
    lives, settings = await prepare(h, start_worker)
    options = ["--queue", "another", "--transport", "another"]
    killed = await start_worker(h.url, module=MODULE, crash=point, options=options, **settings)
    assert await killed.ended() == -signal.SIGKILL
    before = [await life.questions() for life in lives]
    assert [[stands for _, stands in questions] for questions in before] == [[status]] * len(lives)

    async with survivor(h, lives):
        await answered(h, lives)

    for life, asked in zip(lives, before, strict=True):
        await life.assert_whole()
        assert [id_ for id_, _ in await life.questions()] == [id_ for id_, _ in asked]
        assert len(await life.sendings()) == 1


async def test_a_completer_that_dies_in_its_transaction_has_changed_nothing(h: Harness) -> None:
    life = await begun(h, "each")
    async with survivor(h, [life]):
        question = await first_question(life)
        await life.handle.wait(until="settled", timeout=PATIENCE)
        dying = await asyncpg.connect(h.url)
        await dying.execute("begin")
        await dying.fetch("select * from stepwell.complete(interaction => $1, reply => '1')", question)
        dying.terminate()

        again = await answer_one(h, question)
        await answered(h, [life])

    assert not again.is_duplicate
    await life.assert_whole()
