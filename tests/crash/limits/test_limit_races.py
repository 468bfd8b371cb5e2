"""Waiting for a slot, against releasing one, by two connections: no row stays in a wait queue with a free slot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from stepwell import ConcurrencyLimit, RateLimit
from stepwell._core.instance import Claim
from stepwell._store import concurrency_keys, instances, limits, operators
from stepwell._store.operations import commit
from stepwell._store.operations.claim import claim_full
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.claims import request
from tests.support.commits import full_path
from tests.support.race import Plain, Race, Session, done

LOCKED = "order by l.number\n{}for no key update"
UNLOCKED = (
    ("limits/lock_rows", (LOCKED.format("  "), "order by l.number")),
    ("limits/lock", (LOCKED.format(""), "order by l.number")),
    ("limits/lock_rates", (LOCKED.format(""), "order by l.number")),
)


@pytest.fixture
async def race(make_harness: MakeHarness) -> AsyncIterator[Race]:
    harness: Harness = await make_harness(
        [Plain], limits=[ConcurrencyLimit("l", 1), ConcurrencyLimit("m", 1), RateLimit("r", 1, per=86_400, burst=1)]
    )
    await harness.engine.migrate()
    async with AsyncExitStack() as stack:
        yield Race(harness, stack)


async def admitted(session: Session, worker_id: int, *ids: int) -> list[int]:
    answer = await limits.admit(session, worker_id, "default", ids)  # type: ignore[arg-type]
    return [claim.id for claim in answer.claims]


def unlock(*sessions: Session) -> None:
    """Read without the limits' locks."""
    for session in sessions:
        for name, change in UNLOCKED:
            session.change(name, change)


async def two_that_need(race: Race, **options: Any) -> tuple[int, int]:
    first, second = [(await race.harness.engine.start(Plain, {}, **options)).id for _ in range(2)]
    return first, second


async def holder_and_behind(race: Race, session: Session, **options: Any) -> tuple[Claim, int, int]:
    """The claim that has the only slot, the row that finds none, and a worker."""
    options = options or {"concurrency_limit": "l"}
    first, second = await two_that_need(race, **options)
    worker_id = await race.worker(session)
    answer = await limits.admit(session, worker_id, "default", [first])  # type: ignore[arg-type]
    return answer.claims[0], second, worker_id


async def end(how: str, session: Session, holder: Claim) -> Any:
    db: Any = session
    match how:
        case "commit":
            return await commit.commit(db, [done(holder)], full_path())
        case "release":
            return await instances.release(db, holder.worker_id, [(holder.id, holder.fence, None)])
        case "reap":
            return await instances.reap(db, [(holder.id, None, None)], 10)
        case _:
            return await operators.cancel(db, holder.id, cascade=True, reason="test", by=None)


WAYS = ("commit", "release", "reap", "cancel")


@pytest.mark.parametrize("how", WAYS)
async def test_an_end_waits_for_an_uncommitted_hold_and_admits_its_row(race: Race, how: str) -> None:
    holding, ending = await race.session(), await race.session()
    holder, behind, worker_id = await holder_and_behind(race, ending)
    await race.end_lease(holder.worker_id)
    await holding.begin()
    assert await admitted(holding, worker_id, behind) == []

    over = await race.blocked(ending, end(how, ending, holder))
    await holding.commit()
    await over

    assert await race.row(behind, "status", "hold") == ("runnable", None)


@pytest.mark.parametrize("how", WAYS)
async def test_an_admission_waits_for_an_uncommitted_end_and_gets_its_slot(race: Race, how: str) -> None:
    holding, ending = await race.session(), await race.session()
    holder, behind, worker_id = await holder_and_behind(race, ending)
    await race.end_lease(holder.worker_id)
    await ending.begin()
    await end(how, ending, holder)

    looking = await race.blocked(holding, admitted(holding, worker_id, behind))
    await ending.commit()

    assert await looking == [behind]


@pytest.mark.parametrize("first", ["hold", "end"])
async def test_without_the_lock_only_the_reaper_would_admit_the_row(
    race: Race, first: str
) -> None:
    holding, ending = await race.session(), await race.session()
    holder, behind, worker_id = await holder_and_behind(race, ending)
    unlock(holding, ending)
    await holding.begin()
    await ending.begin()

    if first == "hold":
        await admitted(holding, worker_id, behind)
        await end("commit", ending, holder)
    else:
        await end("commit", ending, holder)
        await admitted(holding, worker_id, behind)
    await holding.commit()
    await ending.commit()

    assert await race.row(behind, "status", "hold") == ("runnable", "limit")
    assert await concurrency_keys.free_idle(await race.session()) == ["default"]  # type: ignore[arg-type]
    assert await race.row(behind, "status", "hold") == ("runnable", None)


@pytest.mark.parametrize(
    ("need", "hold"), [({"concurrency_limit": "l"}, "limit"), ({"rate_limit": "r"}, "rate")], ids=["slot", "token"]
)
async def test_of_two_rows_for_the_last_slot_or_token_the_second_is_put_on_hold(
    race: Race, need: dict[str, Any], hold: str
) -> None:
    one, two = await race.session(), await race.session()
    first, second = await two_that_need(race, **need)
    worker_id = await race.worker(one)
    await one.begin()
    assert await admitted(one, worker_id, first) == [first]

    waiting = await race.blocked(two, admitted(two, worker_id, second))
    await one.commit()

    assert await waiting == []
    assert await race.row(second, "hold") == (hold,)


async def test_without_the_lock_the_unique_index_still_refuses_the_second_slot(race: Race) -> None:
    one, two = await race.session(), await race.session()
    first, second = await two_that_need(race, concurrency_limit="l")
    worker_id = await race.worker(one)
    unlock(one, two)
    await one.begin()
    await admitted(one, worker_id, first)

    waiting = await race.blocked(two, admitted(two, worker_id, second))
    await one.commit()

    with pytest.raises(Exception, match="instances_slot"):
        await waiting
    assert await race.row(second, "status") == ("runnable",)


async def test_without_the_lock_both_would_take_the_last_token(race: Race) -> None:
    one, two = await race.session(), await race.session()
    first, second = await two_that_need(race, rate_limit="r")
    worker_id = await race.worker(one)
    unlock(one, two)
    await one.begin()
    await two.begin()

    assert await admitted(one, worker_id, first) == [first]
    over = await race.blocked(two, admitted(two, worker_id, second))
    await one.commit()
    assert await over == [second]
    await two.commit()


async def test_two_rows_that_need_two_limits_in_opposite_orders_do_not_deadlock(race: Race) -> None:
    one, two = await race.session(), await race.session()
    ids = [
        (await race.harness.engine.start(Plain, {}, concurrency_limit=limit, rate_limit=("r", limit))).id
        for limit in ("l", "m", "m", "l")
    ]
    worker_id = await race.worker(one)

    answers = await asyncio.gather(admitted(one, worker_id, *ids[:2]), admitted(two, worker_id, *reversed(ids[2:])))

    assert len([id_ for answer in answers for id_ in answer]) == 2


async def test_a_claim_beside_an_admission_that_waits_finds_other_rows(race: Race) -> None:
    busy, waiting, claiming = await race.session(), await race.session(), await race.session()
    first, second = await two_that_need(race, concurrency_limit="l")
    worker_id = await race.worker(busy)
    await busy.begin()
    await limits.free(busy, ["l"])  # type: ignore[arg-type]

    over = await race.blocked(waiting, admitted(waiting, worker_id, first))
    claimed = await claim_full(claiming, request(worker_id, 1, ["Plain@1"]))

    assert [row.id for row in claimed.limited] == [second]
    assert await admitted(claiming, worker_id, first) == [], "it does not wait for what is in other hands"
    await busy.commit()
    assert await over == [first]


async def change(session: Session, **new: int) -> set[str]:
    return await limits.change(session, "concurrency", "l", new["n"], None, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("part", ["l", ("l", "a part")])
async def test_a_limit_change_waits_for_a_running_admission(race: Race, part: Any) -> None:
    admitting, changing = await race.session(), await race.session()
    first, second = await two_that_need(race, concurrency_limit=part)
    worker_id = await race.worker(admitting)
    await admitting.begin()
    assert await admitted(admitting, worker_id, first) == [first]

    over = await race.awaiting_claims(changing, change(changing, n=2))
    await admitting.commit()
    await over

    assert await admitted(admitting, worker_id, second) == [second]


async def test_a_limit_change_admits_rows_held_under_the_old_limit(race: Race) -> None:
    admitting, changing = await race.session(), await race.session()
    _, behind, worker_id = await holder_and_behind(race, admitting)
    await admitting.begin()
    assert await admitted(admitting, worker_id, behind) == []

    over = await race.awaiting_claims(changing, change(changing, n=3))
    await admitting.commit()

    assert await over == {"default"}
    assert await race.row(behind, "hold") == (None,)


async def test_without_its_wait_a_limit_of_0_would_still_let_one_row_start(race: Race) -> None:
    admitting, changing = await race.session(), await race.session()
    changing.change("queues/find_claiming", ("l.granted", "not l.granted"))
    first, _ = await two_that_need(race, concurrency_limit="l")
    worker_id = await race.worker(admitting)
    await admitting.begin()
    assert await admitted(admitting, worker_id, first) == [first]

    await change(changing, n=0)
    assert await race.row(first, "status") == ("runnable",)
    await admitting.commit()

    assert await race.row(first, "status") == ("executing",)


async def test_after_a_cancel_in_a_callers_transaction_the_reaper_admits_the_next(race: Race) -> None:
    session = await race.session()
    holder, behind, worker_id = await holder_and_behind(race, session)
    assert await admitted(session, worker_id, behind) == []

    await race.harness.sql("select stepwell.cancel(id => $1)", holder.id)
    assert await race.row(behind, "hold") == ("limit",)

    assert await concurrency_keys.free_idle(session) == ["default"]  # type: ignore[arg-type]
    assert await admitted(session, worker_id, behind) == [behind]


@pytest.mark.parametrize(
    ("key", "take"),
    [
        ("limit:provider", lambda session: limits.free(session, ["provider"])),
        ("rate:provider", lambda session: session.fetch("limits/lock_rates", ["provider"])),
    ],
)
async def test_a_key_named_like_a_limit_has_another_lock(race: Race, key: str, take: Any) -> None:
    holding, other = await race.session(), await race.session()
    await holding.begin()
    await concurrency_keys.lock(holding, [key])

    await asyncio.wait_for(take(other), 30)

    await holding.commit()


async def test_a_change_of_a_limit_of_many_parts_locks_few_of_them_at_a_time(race: Race) -> None:
    """All parts of a limit in one transaction would be locked until the last wait queue is done."""
    for _ in range(120):
        await race.harness.engine.start(Plain, {}, concurrency_limit="l")
    await race.harness.sql("update stepwell.instances set hold = 'limit', concurrency_limit = 'l:' || id")
    session = await race.session()

    await limits.change(session, "concurrency", "l", 5, None, None, None)  # type: ignore[arg-type]

    locked = [len(args[0]) for name, args, _ in session.sent if name == "limits/lock"]  # type: ignore[arg-type]
    assert (sum(locked), max(locked) <= limits.QUEUES_AT_ONCE) == (120, True)
    assert await race.harness.sql("select from stepwell.instances where hold is not null") == []
