"""The short way to a slot, by two connections: it admits, puts aside and lets go as the long one does."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import pytest

from stepwell import ConcurrencyLimit, RateLimit, Status
from stepwell._core.records import Claim
from stepwell._store import flushes, instances, keys, limits, slots
from stepwell.testing import Harness
from tests.conftest import MakeHarness
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
    answer = await slots.claim(session, worker_id, "default", most, labels, others)
    return None if answer is None else answer.claims


async def claimed(session: Session, worker_id: int, most: int = 100) -> list[int]:
    return [claim.id for claim in await claim(session, worker_id, most) or []]


async def end(session: Session, holder: Claim) -> list[str]:
    """End it as the flusher does; returns the queues of who was let go."""
    db: Any = session
    flushed = await flushes.flush(db, [done(holder)], barely=True)
    assert flushed.slots == [holder.concurrency_limit]
    return await slots.let_go(session, flushed.slots)


async def holder_and_behind(race: Race, session: Session) -> tuple[Claim, int, int]:
    """The claim that holds the only slot, the row that will find none, and a worker."""
    _, behind = await start(race, 2, concurrency_limit="l")
    worker_id = await race.worker(session)
    claims = await claim(session, worker_id, 1)
    assert claims is not None
    return claims[0], behind, worker_id


async def test_of_two_who_want_the_last_slot_the_second_waits_and_is_put_aside(race: Race) -> None:
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


async def test_who_lets_go_waits_for_a_hold_under_way_and_lets_its_row_go(race: Race) -> None:
    holding, ending = await race.session(), await race.session()
    holder, behind, worker_id = await holder_and_behind(race, ending)
    await holding.begin()
    assert await claimed(holding, worker_id) == []

    over = await race.blocked(ending, end(ending, holder))
    await holding.commit()

    assert await over == ["default"]
    assert await race.row(behind, "status", "hold") == ("runnable", None)


async def test_who_looks_for_a_slot_waits_for_an_end_under_way_and_gets_it(race: Race) -> None:
    holding, ending = await race.session(), await race.session()
    holder, behind, worker_id = await holder_and_behind(race, ending)
    await ending.begin()
    await end(ending, holder)

    looking = await race.blocked(holding, claimed(holding, worker_id))
    await ending.commit()

    assert await looking == [behind]


async def test_without_the_lock_the_row_would_wait_for_ever_and_only_the_reaper_would_find_it(race: Race) -> None:
    holding, ending = await race.session(), await race.session()
    holder, behind, worker_id = await holder_and_behind(race, ending)
    await race.harness.sql(NOTHING_LOCKED)
    await holding.begin()
    assert await claimed(holding, worker_id) == []

    assert await end(ending, holder) == []
    await holding.commit()

    assert await race.row(behind, "status", "hold") == ("runnable", "limit")
    assert await keys.free_idle(await race.session()) == ["default"]  # type: ignore[arg-type]
    assert await race.row(behind, "status", "hold") == ("runnable", None)


async def test_who_dies_before_it_lets_go_leaves_that_to_the_reapers_look(race: Race) -> None:
    session = await race.session()
    holder, behind, worker_id = await holder_and_behind(race, session)
    assert await claimed(session, worker_id) == []

    await flushes.flush(session, [done(holder)], barely=True)  # type: ignore[arg-type]
    assert await race.row(behind, "hold") == ("limit",)

    assert await keys.free_idle(session) == ["default"]  # type: ignore[arg-type]
    assert await claimed(session, worker_id) == [behind]


async def test_the_end_of_a_child_does_not_wait_for_its_limit(race: Race) -> None:
    busy, ending = await race.session(), await race.session()
    [parent], [child] = await start(race, delay=timedelta(hours=1)), await start(race, concurrency_limit="m")
    await race.harness.sql(
        "update stepwell.instances set parent_id = $1, parent_round = 0, child_index = 0 where id = $2", parent, child
    )
    [holder] = await claim(ending, await race.worker(ending)) or []
    await busy.begin()
    await slots.let_go(busy, ["m"])

    flushed = await flushes.flush(ending, [done(holder)], barely=True)  # type: ignore[arg-type]

    assert (flushed.was_hindered, flushed.slots) == (False, ["m"])
    assert await race.row(child, "status", "joined") == ("done", True)


@pytest.mark.parametrize("part", ["l", ("l", "a part")])
async def test_a_change_waits_for_a_claim_under_way(race: Race, part: Any) -> None:
    claiming, changing = await race.session(), await race.session()
    first, second = await start(race, 2, concurrency_limit=part)
    worker_id = await race.worker(claiming)
    await claiming.begin()
    assert await claimed(claiming, worker_id, 1) == [first]

    over = await race.blocked(changing, limits.change(changing, "concurrency", "l", 2, None, None, None))  # type: ignore[arg-type]
    await claiming.commit()
    await over

    assert await claimed(claiming, worker_id) == [second]


async def test_a_claim_waits_for_a_change_under_way_and_goes_by_it(race: Race) -> None:
    claiming, changing = await race.session(), await race.session()
    [first] = await start(race, concurrency_limit="l")
    worker_id = await race.worker(claiming)
    await changing.begin()
    await limits.change(changing, "concurrency", "l", 0, None, None, None)  # type: ignore[arg-type]

    waiting = await race.blocked(claiming, claimed(claiming, worker_id))
    await changing.commit()

    assert await waiting == []
    assert await race.row(first, "hold") == ("limit",)


async def test_a_row_in_other_hands_is_passed_over_and_nobody_waits_for_it(race: Race) -> None:
    caller, session = await race.session(), await race.session()
    locked, free = await start(race, 2, concurrency_limit="m")
    worker_id = await race.worker(session)
    await caller.begin()
    await caller.lock_row(locked)

    assert await claimed(session, worker_id) == [free]


async def test_who_waits_for_a_limit_holds_up_nobodys_row(race: Race) -> None:
    busy, waiting, caller = await race.session(), await race.session(), await race.session()
    [row] = await start(race, concurrency_limit="m")
    worker_id = await race.worker(busy)
    await busy.begin()
    await slots.let_go(busy, ["m"])

    over = await race.blocked(waiting, claimed(waiting, worker_id))
    await caller.connection.execute("select from stepwell.instances where id = $1 for update nowait", row)
    await busy.commit()

    assert await over == [row]


async def test_what_comes_to_the_head_while_it_waits_for_the_limit_is_for_the_next_claim(race: Race) -> None:
    busy, waiting = await race.session(), await race.session()
    [first] = await start(race, concurrency_limit="m")
    worker_id = await race.worker(busy)
    await busy.begin()
    await slots.let_go(busy, ["m"])
    over = await race.blocked(waiting, slots.claim(waiting, worker_id, "default", 10, LABELS, []))
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
async def test_a_window_with_anything_else_is_left_as_it_is(race: Race, other: dict[str, Any]) -> None:
    session = await race.session()
    [plain] = await start(race, concurrency_limit="m")
    [different] = await start(race, **other)
    worker_id = await race.worker(session)

    assert await claim(session, worker_id) is None

    for id_ in (plain, different):
        assert await race.row(id_, "status", "hold", "slot") == ("runnable", None, None)


async def test_a_version_nobody_named_or_a_limit_nobody_declares_is_for_the_long_way(race: Race) -> None:
    session = await race.session()
    await start(race, concurrency_limit="m")
    worker_id = await race.worker(session)

    assert await claim(session, worker_id, labels=["Plain@2"]) is None
    assert await claim(session, worker_id, others=LABELS) == [], "passed over, there is nothing"
    await race.harness.sql("delete from stepwell.limits where name = 'm'")
    assert await claim(session, worker_id) is None


async def test_a_paused_queue_gives_nothing(race: Race) -> None:
    session = await race.session()
    await start(race, concurrency_limit="m")
    worker_id = await race.worker(session)
    await race.harness.engine.queues.pause("default")

    assert await claim(session, worker_id) == []


async def test_a_lowered_limit_lets_nobody_in_before_fewer_are_inside(race: Race) -> None:
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
async def test_a_claim_does_not_wait_for_the_disk_but_its_beginning_does(race: Race, way: str) -> None:
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


async def test_a_slot_that_a_crash_of_the_server_has_undone_does_not_begin(race: Race) -> None:
    session = await race.session()
    await start(race, concurrency_limit="m")
    worker_id = await race.worker(session)
    await session.begin()
    claims = await claim(session, worker_id)
    assert claims is not None
    await session.roll_back()  # as a crash does to what is not on the disk

    begun = await race.begin(session, claims)

    assert begun is not None
    assert begun.states == {}


async def admit(session: Session, worker_id: int, *ids: int) -> list[Claim]:
    """The long way."""
    return (await limits.admit(session, worker_id, "default", ids)).claims  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(12))
async def test_both_ways_decide_the_same(race: Race, seed: int) -> None:
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
            found = await instances.claim(session, worker_id, "default", most, LABELS)
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
async def test_what_stands_behind_a_row_in_a_callers_open_transaction_goes_on(
    race: Race, behind: dict[str, Any]
) -> None:
    """Its hands are as many as the rows that are locked: the first look sees nothing else."""
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
