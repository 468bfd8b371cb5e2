"""The fast path to a slot, by two connections: it admits, holds and releases as the full path does."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from stepwell import ConcurrencyLimit, RateLimit, Status
from stepwell._core.instance import Claim
from stepwell._store import concurrency_keys, limits
from stepwell._store.operations import commit
from stepwell._store.operations.claim import claim_full, claim_slots
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.claims import request
from tests.support.race import Plain, Race, Session, done

LABELS = ["Plain@1"]
NOTHING_LOCKED = """
create or replace function stepwell._lock_limits(names text[]) returns void language plpgsql as $$ begin end $$
"""


@pytest.fixture
async def race(make_harness: MakeHarness) -> AsyncIterator[Race]:
    harness: Harness = await make_harness(
        [Plain], limits=[ConcurrencyLimit("l", 1), ConcurrencyLimit("m", 3), RateLimit("r", 1, per=86_400, burst=1)]
    )
    await harness.engine.migrate()
    async with AsyncExitStack() as stack:
        yield Race(harness, stack)


async def start(race: Race, number: int = 1, **options: Any) -> list[int]:
    return [(await race.harness.engine.start(Plain, {}, **options)).id for _ in range(number)]


async def claim(
    session: Session, worker_id: int, most: int = 100, *, labels: Sequence[str] = LABELS, others: Sequence[str] = ()
) -> list[Claim] | None:
    answer = await claim_slots(session, request(worker_id, most, labels, others=others))
    return None if answer is None else answer.claims


async def claimed(session: Session, worker_id: int, most: int = 100) -> list[int]:
    return [claim.id for claim in await claim(session, worker_id, most) or []]


async def end(session: Session, holder: Claim) -> list[str]:
    """End it as the committer does; returns the queues of admitted rows."""
    db: Any = session
    flushed = await commit.commit(db, [done(holder)], commit.CommitPaths())
    assert flushed.slots == [holder.concurrency_limit]
    return await limits.admit_waiting(session, flushed.slots)


async def holder_and_behind(race: Race, session: Session) -> tuple[Claim, int, int]:
    """The claim that has the only slot, the row that will find none, and a worker."""
    _, behind = await start(race, 2, concurrency_limit="l")
    worker_id = await race.worker(session)
    claims = await claim(session, worker_id, 1)
    assert claims is not None
    return claims[0], behind, worker_id


async def test_of_two_rows_for_the_last_slot_the_second_is_put_on_hold(race: Race) -> None:
    one, two = await race.session(), await race.session()
    first, second = await start(race, 2, concurrency_limit="l")
    worker_id = await race.worker(one)
    await one.begin()
    assert await claimed(one, worker_id, 1) == [first]

    waiting = await race.blocked(two, claimed(two, worker_id))
    await one.commit()

    assert await waiting == []
    assert await race.row(second, "status", "hold", "slot") == ("runnable", "limit", None)


async def test_without_the_lock_the_unique_index_still_refuses_the_second_slot(race: Race) -> None:
    one, two = await race.session(), await race.session()
    await race.harness.sql(NOTHING_LOCKED)
    first, second = await start(race, 2, concurrency_limit="l")
    worker_id = await race.worker(one)
    await one.begin()
    assert await claimed(one, worker_id, 1) == [first]

    waiting = await race.blocked(two, claimed(two, worker_id))
    await one.commit()

    with pytest.raises(Exception, match="instances_slot"):
        await waiting
    assert await race.row(second, "status", "hold") == ("runnable", None)


async def test_a_release_waits_for_an_uncommitted_hold_and_admits_its_row(race: Race) -> None:
    holding, ending = await race.session(), await race.session()
    holder, behind, worker_id = await holder_and_behind(race, ending)
    await holding.begin()
    assert await claimed(holding, worker_id) == []

    over = await race.blocked(ending, end(ending, holder))
    await holding.commit()

    assert await over == ["default"]
    assert await race.row(behind, "status", "hold") == ("runnable", None)


async def test_an_admission_waits_for_an_uncommitted_end_and_gets_its_slot(race: Race) -> None:
    holding, ending = await race.session(), await race.session()
    holder, behind, worker_id = await holder_and_behind(race, ending)
    await ending.begin()
    await end(ending, holder)

    looking = await race.blocked(holding, claimed(holding, worker_id))
    await ending.commit()

    assert await looking == [behind]


async def test_without_the_lock_only_the_reaper_would_admit_the_row(race: Race) -> None:
    holding, ending = await race.session(), await race.session()
    holder, behind, worker_id = await holder_and_behind(race, ending)
    await race.harness.sql(NOTHING_LOCKED)
    await holding.begin()
    assert await claimed(holding, worker_id) == []

    assert await end(ending, holder) == []
    await holding.commit()

    assert await race.row(behind, "status", "hold") == ("runnable", "limit")
    assert await concurrency_keys.free_idle(await race.session()) == ["default"]  # type: ignore[arg-type]
    assert await race.row(behind, "status", "hold") == ("runnable", None)


async def test_a_slot_of_a_worker_that_dies_before_releasing_it_is_swept(race: Race) -> None:
    session = await race.session()
    holder, behind, worker_id = await holder_and_behind(race, session)
    assert await claimed(session, worker_id) == []

    await commit.commit(session, [done(holder)], commit.CommitPaths())  # type: ignore[arg-type]
    assert await race.row(behind, "hold") == ("limit",)

    assert await concurrency_keys.free_idle(session) == ["default"]  # type: ignore[arg-type]
    assert await claimed(session, worker_id) == [behind]


async def test_the_end_of_a_child_does_not_wait_for_its_limit(race: Race) -> None:
    busy, ending = await race.session(), await race.session()
    [parent], [child] = await start(race, delay=timedelta(hours=1)), await start(race, concurrency_limit="m")
    await race.harness.sql(
        "update stepwell.instances set parent_id = $1, parent_round = 0, child_index = 0 where id = $2", parent, child
    )
    [holder] = await claim(ending, await race.worker(ending)) or []
    await busy.begin()
    await limits.admit_waiting(busy, ["m"])

    paths = commit.CommitPaths()
    flushed = await commit.commit(ending, [done(holder)], paths)  # type: ignore[arg-type]

    assert (paths.full_until, flushed.slots) == (0, ["m"])
    assert await race.row(child, "status", "joined") == ("done", True)


@pytest.mark.parametrize("part", ["l", ("l", "a part")])
async def test_a_limit_change_waits_for_a_running_claim(race: Race, part: Any) -> None:
    claiming, changing = await race.session(), await race.session()
    first, second = await start(race, 2, concurrency_limit=part)
    worker_id = await race.worker(claiming)
    await claiming.begin()
    assert await claimed(claiming, worker_id, 1) == [first]

    over = await race.awaiting_claims(changing, limits.change(changing, "concurrency", "l", 2, None, None, None))  # type: ignore[arg-type]
    await claiming.commit()
    await over

    assert await claimed(claiming, worker_id) == [second]


async def test_a_locked_row_is_skipped_and_no_claim_waits_for_it(race: Race) -> None:
    caller, session = await race.session(), await race.session()
    locked, free = await start(race, 2, concurrency_limit="m")
    worker_id = await race.worker(session)
    await caller.begin()
    await caller.lock_row(locked)

    assert await claimed(session, worker_id) == [free]


async def test_a_claim_that_waits_for_a_limit_locks_no_other_row(race: Race) -> None:
    busy, waiting, caller = await race.session(), await race.session(), await race.session()
    [row] = await start(race, concurrency_limit="m")
    worker_id = await race.worker(busy)
    await busy.begin()
    await limits.admit_waiting(busy, ["m"])

    over = await race.blocked(waiting, claimed(waiting, worker_id))
    await caller.connection.execute("select from stepwell.instances where id = $1 for update nowait", row)
    await busy.commit()

    assert await over == [row]


async def test_a_row_started_while_a_claim_waits_is_left_to_the_next_claim(race: Race) -> None:
    busy, waiting = await race.session(), await race.session()
    [first] = await start(race, concurrency_limit="m")
    worker_id = await race.worker(busy)
    await busy.begin()
    await limits.admit_waiting(busy, ["m"])
    over = await race.blocked(waiting, claim_slots(waiting, request(worker_id, 10, LABELS)))
    [urgent] = await start(race, concurrency_limit="l", priority=-1)
    await busy.commit()
    answer = await over

    assert ([claim.id for claim in answer.claims], answer.held, answer.missed) == ([first], [], True)
    assert await claimed(waiting, worker_id) == [urgent]


@pytest.mark.parametrize(
    "other",
    [{}, {"rate_limit": "r"}, {"concurrency_limit": "m", "rate_limit": "r"},
     {"concurrency_limit": "m", "concurrency_key": "k"}],
    ids=["no limit", "rate", "both", "key"],
)  # fmt: skip
async def test_a_window_with_any_other_row_is_left_to_the_full_path(race: Race, other: dict[str, Any]) -> None:
    session = await race.session()
    [plain] = await start(race, concurrency_limit="m")
    [different] = await start(race, **other)
    worker_id = await race.worker(session)

    assert await claim(session, worker_id) is None

    for id_ in (plain, different):
        assert await race.row(id_, "status", "hold", "slot") == ("runnable", None, None)


async def test_an_unnamed_version_or_undeclared_limit_is_left_to_the_full_path(race: Race) -> None:
    session = await race.session()
    await start(race, concurrency_limit="m")
    worker_id = await race.worker(session)

    assert await claim(session, worker_id, labels=["Plain@2"]) is None
    assert await claim(session, worker_id, others=LABELS) == [], "passed over, there is nothing"
    await race.harness.sql("delete from stepwell.limits where name = 'm'")
    assert await claim(session, worker_id) is None


async def test_a_paused_queue_yields_no_claim(race: Race) -> None:
    session = await race.session()
    await start(race, concurrency_limit="m")
    worker_id = await race.worker(session)
    await race.harness.engine.queues.pause("default")

    assert await claim(session, worker_id) == []


async def test_a_lowered_limit_admits_no_row_until_enough_slots_are_free(race: Race) -> None:
    session = await race.session()
    await start(race, 4, concurrency_limit="m")
    worker_id = await race.worker(session)
    inside = await claim(session, worker_id, 3)
    assert inside is not None
    await limits.change(session, "concurrency", "m", 2, None, None, None)  # type: ignore[arg-type]

    assert await claimed(session, worker_id) == []
    assert await end(session, inside[0]) == []
    assert await end(session, inside[1]) == ["default"]
    [last] = await claim(session, worker_id) or []

    assert await race.row(last.id, "slot") == (1,)
    assert await race.row(inside[2].id, "slot") == (3,)


@pytest.mark.parametrize("way", ["short", "long"])
async def test_a_claim_does_not_wait_for_the_disk_but_marking_it_started_does(race: Race, way: str) -> None:
    session = await race.session()
    [id_] = await start(race, concurrency_limit="m")
    worker_id = await race.worker(session)

    await session.begin()
    claims = await claim(session, worker_id) if way == "short" else await admit(session, worker_id, id_)
    assert claims is not None
    assert await session.connection.fetchval("show synchronous_commit") == "off"
    await session.commit()
    await session.begin()
    begun = await race.begin(session, claims)

    assert begun is not None
    assert set(begun.states) == {claims[0].id}
    assert await session.connection.fetchval("show synchronous_commit") == "on"
    await session.commit()


async def test_a_claim_does_not_start_after_a_server_crash_undid_its_slot(race: Race) -> None:
    session = await race.session()
    await start(race, concurrency_limit="m")
    worker_id = await race.worker(session)
    await session.begin()
    claims = await claim(session, worker_id)
    assert claims is not None
    await session.roll_back()  # as a crash does to writes that are not on the disk

    begun = await race.begin(session, claims)

    assert begun is not None
    assert begun.states == {}


async def admit(session: Session, worker_id: int, *ids: int) -> list[Claim]:
    """The full path."""
    return (await limits.admit(session, worker_id, "default", ids)).claims  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(12))
async def test_fast_and_full_path_decide_the_same(race: Race, seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 - chance, not a secret
    session, other = await race.session(), await race.session()
    worker_id = await race.worker(session)
    for number in range(dice.randint(3, 25)):
        await start(
            race, concurrency_limit=dice.choice(["l", "m", ("m", "one"), ("m", "two")]), priority=dice.randint(0, 2)
        )
        if number % 5 == 4:
            for holder in (await claim(other, worker_id, dice.randint(1, 4)) or [])[: dice.randint(0, 2)]:
                await end(other, holder)
    await limits.change(session, "concurrency", "m", dice.randint(0, 4), None, None, None)  # type: ignore[arg-type]
    await race.harness.sql("update stepwell.instances set hold = null where hold = 'limit'")
    most = dice.randint(1, 20)
    seen = []

    for way in ("long", "short"):
        await session.begin()
        if way == "long":
            found = await claim_full(session, request(worker_id, most, LABELS))
            await admit(session, worker_id, *(row.id for row in found.limited))
        else:
            await claim(session, worker_id, most)
        rows = await session.connection.fetch(
            "select id, status, hold, hold_reason, slot, worker_id, fence from stepwell.instances order by id"
        )
        seen.append([tuple(row) for row in rows])
        await session.roll_back()

    assert seen[0] == seen[1]


@pytest.mark.parametrize("behind", [{"concurrency_limit": ("m", "another")}, {}], ids=["another part", "no limit"])
async def test_rows_behind_a_row_that_a_caller_locked_continue(
    race: Race, behind: dict[str, Any]
) -> None:
    """Its slots are as many as the locked rows: the first claim sees no other row."""
    engine = race.harness.engine
    caller = await race.session()
    async with engine.worker({"default": 1}):
        first = await engine.start(Plain, {}, concurrency_limit=("m", "one"))
        await first.wait(timeout=10)
        await engine.queues.pause("default")
        locked = await engine.start(Plain, {}, concurrency_limit=("m", "one"), priority=-1)
        await caller.begin()
        await caller.lock_row(locked.id)
        others = [await engine.start(Plain, {}, **behind) for _ in range(3)]
        await engine.queues.resume("default")

        ended = [(await other.wait(timeout=10)).status for other in others]
        assert ended == [Status.DONE] * 3

        await caller.commit()
        assert (await locked.wait(timeout=10)).status is Status.DONE
