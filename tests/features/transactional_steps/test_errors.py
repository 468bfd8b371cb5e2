"""Transactional steps that fail, in any way: everything is rolled back, and `handle` decides outside of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Machine, Next, Retry, Status, StepTimeout, TransactionBroken, step
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.features.transactional_steps.ledger import SESSIONS, note, notes, run
from tests.support.waiting import eventually

Deed = Callable[[Context[Any]], Awaitable[Any]]


class Clumsy(Machine):
    """Writes, then does what its deed says; `handle` returns what it saw, and that it has no connection."""

    @step(transactional=True, timeout=timedelta(seconds=20))
    async def start(self, ctx: Context[Any]) -> Any:
        await note(ctx.connection, "written")
        return await DEEDS[ctx.state["deed"]](ctx)

    async def handle(self, error: Exception, ctx: Context[Any]) -> Done:
        try:
            connection = ctx.connection
        except Exception as refused:  # noqa: BLE001 - its words are the expectation
            connection = str(refused)
        return Done([type(error).__name__, str(error), "`handle` of Clumsy has no connection" in connection])


async def raise_error(ctx: Context[Any]) -> Any:
    raise ValueError("a mistake")


async def return_nothing(ctx: Context[Any]) -> Any:
    return None


async def fail_in_sql(ctx: Context[Any]) -> Any:
    await run(ctx.connection, "select 1 / 0")


async def swallow_an_sql_error(ctx: Context[Any]) -> Any:
    try:
        await run(ctx.connection, "select 1 / 0")
    except Exception:  # noqa: BLE001 - either driver's own error
        return Done()


async def commit_in_sql(ctx: Context[Any]) -> Any:
    await run(ctx.connection, "delete from public.ledger")  # its own commits stay
    await run(ctx.connection, "commit")
    return Done()


async def roll_back_in_sql(ctx: Context[Any]) -> Any:
    await run(ctx.connection, "rollback")
    await run(ctx.connection, "begin")
    return Done()


async def break_a_deferred_constraint(ctx: Context[Any]) -> Any:
    await run(ctx.connection, "set constraints all deferred")
    await note(ctx.connection, "written")
    return Done()


async def leave_a_query_running(ctx: Context[Any]) -> Any:
    ctx.resources.append(asyncio.ensure_future(run(ctx.connection, "select pg_sleep(60)")))
    await asyncio.sleep(0)
    return Done()


async def be_refused(ctx: Context[Any]) -> Any:
    await run(ctx.connection, "set transaction read only")
    return Done()


async def move_itself(ctx: Context[Any]) -> Any:
    await run(ctx.connection, f"update stepwell.instances set fence = fence + 1 where id = {ctx.id}")
    return Done()


async def close_it(ctx: Context[Any]) -> Any:
    await ctx.connection.close()
    return Done()


async def commit_the_session(ctx: Context[Any]) -> Any:
    await ctx.connection.commit()


async def roll_the_session_back(ctx: Context[Any]) -> Any:
    await ctx.connection.rollback()


async def close_the_session(ctx: Context[Any]) -> Any:
    async with ctx.connection:
        pass


async def commit_beneath_the_session(ctx: Context[Any]) -> Any:
    """It does not: the session's own commit leaves the transaction to us."""
    await ctx.connection.run_sync(lambda session: session.commit())
    raise ValueError("so this undoes it")


async def roll_back_beneath_the_session(ctx: Context[Any]) -> Any:
    await ctx.connection.run_sync(lambda session: session.rollback())
    return Done()


DEEDS: dict[str, Deed] = {
    deed.__name__: deed
    for deed in (
        raise_error, return_nothing, fail_in_sql, swallow_an_sql_error, commit_in_sql, roll_back_in_sql,
        break_a_deferred_constraint, leave_a_query_running, be_refused, move_itself, close_it, commit_the_session,
        roll_the_session_back, close_the_session, commit_beneath_the_session, roll_back_beneath_the_session,
    )
}  # fmt: skip
SEEN = {
    "asyncpg": {
        "raise_error": ("ValueError", "a mistake"),
        "return_nothing": ("InvalidOutcome", "returned None"),
        "fail_in_sql": ("DivisionByZeroError", "division by zero"),
        "swallow_an_sql_error": ("TransactionBroken", "which leaves the transaction aborted"),
        "commit_in_sql": ("TransactionBroken", "the step ended the transaction; return an outcome to commit"),
        "roll_back_in_sql": ("TransactionBroken", "the step ended the transaction"),
        "break_a_deferred_constraint": ("UniqueViolationError", "duplicate key"),
        "leave_a_query_running": ("TransactionBroken", "still in use"),
        "be_refused": ("RefusedByDatabase", "read-only transaction"),
        "move_itself": ("TransactionBroken", "its own instance"),
        "close_it": ("TransactionBroken", "close() was called in the step"),
    },
    "sqlalchemy": {
        "raise_error": ("ValueError", "a mistake"),
        "fail_in_sql": ("DBAPIError", "division by zero"),
        "swallow_an_sql_error": ("TransactionBroken", "which leaves the transaction aborted"),
        "commit_in_sql": ("TransactionBroken", "the step ended the transaction"),
        "break_a_deferred_constraint": ("IntegrityError", "duplicate key"),
        "commit_the_session": ("TransactionBroken", "commit() was called"),
        "roll_the_session_back": ("TransactionBroken", "rollback() was called"),
        "close_the_session": ("TransactionBroken", "close() was called"),
        "commit_beneath_the_session": ("ValueError", "so this undoes it"),
        "roll_back_beneath_the_session": ("TransactionBroken", "the step ended the transaction"),
    },
}


@pytest.mark.parametrize("session", SESSIONS)
async def test_any_error_in_the_step_is_rolled_back_and_goes_to_handle(make: MakeHarness, session: str) -> None:
    tasks: list[Any] = []
    h = await make([Clumsy], transactional_session=session, resources=tasks)
    told = {}

    async with h.engine.worker() as worker:
        for deed in SEEN[session]:
            clumsy = await h.engine.start(Clumsy, {"deed": deed})
            told[deed] = (await clumsy.result(timeout=30), await notes(h))
    await asyncio.gather(*tasks, return_exceptions=True)

    for deed, (kind, words) in SEEN[session].items():
        (seen_kind, seen_words, has_no_connection), left = told[deed]
        assert (seen_kind, has_no_connection, left) == (kind, True, []), f"{deed}: {told[deed]}"
        assert words in seen_words, deed
    assert (worker.stats.committed, worker.stats.stale) == (len(told), 0)


@pytest.mark.parametrize("session", SESSIONS)
async def test_a_savepoint_undoes_a_part_and_the_rest_is_committed(make: MakeHarness, session: str) -> None:
    class Careful(Machine):
        @step(transactional=True)
        async def start(self, ctx: Context[Any]) -> Done:
            await note(ctx.connection, "kept")
            begin = ctx.connection.transaction if session == "asyncpg" else ctx.connection.begin_nested
            try:
                async with begin():
                    await note(ctx.connection, "kept")
            except Exception as error:  # noqa: BLE001 - either driver's own error
                return Done("duplicate" in str(error))
            return Done()

    h = await make([Careful], transactional_session=session)
    careful = await h.engine.start(Careful)
    async with h.engine.worker():
        assert await careful.result(timeout=30) is True

    assert await notes(h) == ["kept"]


@pytest.mark.parametrize("session", SESSIONS)
async def test_a_step_past_its_timeout_is_rolled_back_even_during_a_query(make: MakeHarness, session: str) -> None:
    class Slow(Machine):
        @step(transactional=True, timeout=timedelta(milliseconds=300))
        async def start(self, ctx: Context[Any]) -> Done:
            await note(ctx.connection, "slow")
            await run(ctx.connection, "select pg_sleep(60)")
            return Done()

        async def handle(self, error: Exception, ctx: Context[Any]) -> Next:
            assert isinstance(error, StepTimeout)
            return Next(self.after)

        @step(transactional=True)
        async def after(self, ctx: Context[Any]) -> Done:
            await note(ctx.connection, "slow")  # waits for no lock: that of the first one is gone
            return Done("after")

    h = await make([Slow], transactional_session=session, transactional_pool=1)
    slow = await h.engine.start(Slow)
    async with h.engine.worker():
        assert await slow.result(timeout=30) == "after"

    assert await notes(h) == ["slow"]
    assert not await h.sql(
        "select from pg_stat_activity where datname = current_database() and query like '%pg_sleep(60)' "
        "and state = 'active'"
    )


async def test_a_wait_for_a_connection_does_not_count_into_the_timeout(make: MakeHarness) -> None:
    class Brief(Machine):
        @step(transactional=True, timeout=timedelta(milliseconds=400))
        async def start(self, ctx: Context[Any]) -> Done:
            await run(ctx.connection, "select pg_sleep(0.1)")
            return Done("in time")

    h = await make([Brief], transactional_pool=1)
    handles = await h.engine.start_many([Brief] * 6)
    async with h.engine.worker():
        results = [await handle.result(timeout=30) for handle in handles]  # type: ignore[union-attr]

    assert results == ["in time"] * 6


async def test_a_connection_cut_in_the_step_lets_it_run_again_without_handle(make: MakeHarness) -> None:
    class Cut(Machine):
        @step(transactional=True)
        async def start(self, ctx: Context[Any]) -> Any:
            await note(ctx.connection, "written")
            if ctx.attempt < 2:
                await run(ctx.connection, "select pg_terminate_backend(pg_backend_pid())")
            return Done(ctx.attempt)

        async def handle(self, error: Exception, ctx: Context[Any]) -> Retry:
            raise AssertionError("not the author's matter")

    h = await make([Cut])
    cut = await h.engine.start(Cut)
    async with h.engine.worker():
        assert await cut.result(timeout=30) == 2

    assert await notes(h) == ["written"]


async def test_a_step_that_always_loses_its_connection_goes_to_handle(make: MakeHarness) -> None:
    class Cutting(Machine):
        @step(transactional=True)
        async def start(self, ctx: Context[Any]) -> Any:
            await note(ctx.connection, "written")
            await run(ctx.connection, "select pg_terminate_backend(pg_backend_pid())")

    h = await make([Cutting])
    cutting = await h.engine.start(Cutting)
    await h.sql("update stepwell.instances set attempt = 10 where id = $1", cutting.id)
    async with h.engine.worker():
        ended = await cutting.wait(timeout=30)

    assert ended.error is not None
    assert (ended.status, ended.error.type, await notes(h)) == (Status.FAILED, "TransactionBroken", [])


async def test_a_cancelled_step_leaves_nothing(make: MakeHarness) -> None:
    """Rule 31: cancel stops the step, and its writes are rolled back."""
    h, step_entered = await waiting_harness(make)
    waiting = await h.engine.start(Waiting)

    async with h.engine.worker() as worker:
        await step_entered.wait()
        await waiting.cancel()
        ended = await waiting.wait(timeout=30)
        await is_given_back(h)

    assert (ended.status, await notes(h), worker.stats.committed) == (Status.CANCELLED, [], 0)


async def test_a_step_that_outlives_the_drain_leaves_nothing(make: MakeHarness) -> None:
    """Rule 27: what did not end in time is left to the reaper, which another worker is."""
    h, step_entered = await waiting_harness(
        make, drain_timeout=timedelta(milliseconds=50), lease=timedelta(seconds=1), reap=timedelta(milliseconds=50)
    )
    waiting = await h.engine.start(Waiting)

    async with h.engine.worker():
        await step_entered.wait()
    left = await notes(h)
    async with h.engine.worker():
        result = await waiting.result(timeout=30)

    assert (left, result, await notes(h)) == ([], "done", ["written"])


async def test_a_step_of_a_lost_lease_leaves_nothing(make: MakeHarness) -> None:
    """Rule 26: the step is stopped, and runs again under the new lease."""
    beat = timedelta(milliseconds=20)
    h, step_entered = await waiting_harness(make, lease=timedelta(seconds=1), heartbeat=beat, reap=beat)
    waiting = await h.engine.start(Waiting)

    async with h.engine.worker() as worker:
        await step_entered.wait()
        await h.sql(
            "with reaped as (update stepwell.instances set status = 'runnable', worker_id = null, claimed_at = null, "
            "attempt = 1 returning id) delete from stepwell.workers"
        )
        result = await waiting.result(timeout=30)

    assert (result, await notes(h), worker.stats.leases_lost) == ("done", ["written"], 1)


async def test_an_uncancellable_step_without_its_claim_is_stale_and_leaves_nothing(make: MakeHarness) -> None:
    """Rule 1: nothing of a late outcome is visible, nor of its writes."""
    h, _ = await waiting_harness(make)
    waiting = await h.engine.start(Waiting, step="quick")

    with armed("transactional.returned", hold=True) as returned:
        async with h.engine.worker() as worker:
            await returned.reached()
            await h.sql("update stepwell.instances set status = 'runnable', worker_id = null, claimed_at = null, "
                        "queue = 'elsewhere'")  # fmt: skip
            returned.release()
            await eventually(lambda: worker.running == 0)

    assert (worker.stats.stale, worker.stats.committed, await notes(h)) == (1, 0, [])
    assert (await waiting.get()).status is Status.RUNNABLE


class Waiting(Machine):
    """Writes, and waits for ever at its first attempt."""

    @step(transactional=True)
    async def start(self, ctx: Context[Any]) -> Done:
        await note(ctx.connection, "written")
        if not ctx.attempt:
            ctx.resources.set()
            await asyncio.Event().wait()
        return Done("done")

    @step(transactional=True)
    async def quick(self, ctx: Context[Any]) -> Done:
        await note(ctx.connection, "written")
        return Done("quick")

    async def handle(self, error: Exception, ctx: Context[Any]) -> Done:
        raise AssertionError(f"not for handle: {error!r}")


async def waiting_harness(make: MakeHarness, **settings: Any) -> tuple[Harness, asyncio.Event]:
    entered = asyncio.Event()
    return await make([Waiting], resources=entered, **settings), entered


async def is_given_back(h: Harness) -> None:
    """Wait until no connection of a step is in a transaction."""

    async def nobody_is_in_a_transaction() -> bool:
        return not await h.sql(
            "select from pg_stat_activity where datname = current_database() "
            "and application_name like 'stepwell step%' and state <> 'idle'"
        )

    await eventually(nobody_is_in_a_transaction)


def test_the_error_keeps_its_problem() -> None:
    assert TransactionBroken("it is over").problem == "it is over"


class Modest(Machine):
    """Writes once, and counts its runs."""

    @step(transactional=True)
    async def start(self, ctx: Context[Any]) -> Done:
        ctx.resources.append("ran")
        await note(ctx.connection, "written")
        return Done("committed")

    async def handle(self, error: Exception, ctx: Context[Any]) -> Done:
        ctx.resources.append(repr(error))
        return Done("undone")


async def refuse_commits(h: Harness, times: int, state: str) -> None:
    """Let the server refuse this many commits of the ledger, with this state."""
    for statement in (
        "drop function if exists public.refuse_commit cascade",
        "drop sequence if exists public.commits",
        "create sequence public.commits",
        f"""create function public.refuse_commit() returns trigger language plpgsql as $$
            begin
              if nextval('public.commits') <= {times} then
                raise exception 'not now' using errcode = '{state}';
              end if;
              return null;
            end $$""",
        """create constraint trigger refuse_commit after insert on public.ledger deferrable initially deferred
           for each row execute function public.refuse_commit()""",
    ):
        await h.sql(statement)


@pytest.mark.parametrize("session", SESSIONS)
@pytest.mark.parametrize("state", ["25006", "53100", "55000"])
async def test_a_commit_that_fails_for_a_transient_server_error_is_retried(
    make: MakeHarness, session: str, state: str
) -> None:
    """Read only, disk full, an object in the wrong state: the author caused none of it."""
    runs: list[str] = []
    h = await make([Modest], transactional_session=session, resources=runs)
    await refuse_commits(h, 2, state)

    async with h.engine.worker():
        result = await (await h.engine.start(Modest)).result(timeout=30)

    assert (result, runs, await notes(h)) == ("committed", ["ran"] * 3, ["written"])


@pytest.mark.parametrize("session", SESSIONS)
async def test_a_commit_that_a_constraint_refuses_goes_to_handle(make: MakeHarness, session: str) -> None:
    runs: list[str] = []
    h = await make([Modest], transactional_session=session, resources=runs)
    await refuse_commits(h, 1, "23514")

    async with h.engine.worker():
        result = await (await h.engine.start(Modest)).result(timeout=30)

    assert (result, runs[0], len(runs), await notes(h)) == ("undone", "ran", 2, [])
    assert "not now" in runs[1]
