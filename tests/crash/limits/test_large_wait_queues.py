"""Very many keys, limits and rates, each with a row that waits for it: every statement reads a page of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from typing import Any

import pytest

from stepwell import ConcurrencyLimit, RateLimit
from stepwell._store import concurrency_keys, limits
from stepwell._store.concurrency_keys import IdleSearch
from stepwell._store.registrations import queues
from tests.conftest import MakeHarness
from tests.support.race import Plain, Race, Session

PAGE = 3
MANY = 10
PAGES = 4  # of this number
INSERT = """
insert into stepwell.instances
  (machine, version, step, queue, due_at, created_at, updated_at, status, hold, hold_reason, concurrency_key,
   concurrency_limit, rate_limit)
select 'Plain', 1, 'a', $1, now(), now(), now(), 'runnable', $2, $4, case $2 when 'key' then g.name end,
       case $2 when 'limit' then g.name end, case $2 when 'rate' then g.name end
from unnest($3::text[]) as g(name)"""
BUCKETS = """
insert into stepwell.buckets (key, tokens, refilled_at, next_at)
select g.name, 0, stepwell.now(), stepwell.now() + interval '1 hour'
from unnest($1::text[]) as g(name)"""
LATER = "select key from stepwell.buckets where next_at > stepwell.now() order by key"
HELD = "select coalesce(concurrency_key, concurrency_limit, rate_limit) from stepwell.instances where hold = $1"


@pytest.fixture(autouse=True)
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (concurrency_keys, limits, queues):
        monkeypatch.setattr(module, "PAGE", PAGE, raising=False)


@pytest.fixture
async def race(make_harness: MakeHarness) -> AsyncIterator[Race]:
    harness = await make_harness(
        [Plain], limits=[ConcurrencyLimit("l", 1), RateLimit("r", 1, per=86_400, burst=1), RateLimit("r1", 1)]
    )
    await harness.engine.migrate()
    async with AsyncExitStack() as stack:
        yield Race(harness, stack)


def parts(name: str, number: int = MANY) -> list[str]:
    return [f"{name}:{n:02}" for n in range(number)]


async def in_line(
    race: Race, hold: str, names: Sequence[str], queue: str = "default", reason: str | None = None
) -> None:
    await race.harness.sql(INSERT, queue, hold, names, reason)


async def later(race: Race) -> list[str]:
    """The buckets that the next checks read."""
    return [row["key"] for row in await race.harness.sql(LATER)]


async def held(race: Race, hold: str) -> list[str]:
    return sorted(row[0] for row in await race.harness.sql(HELD, hold))


def sent(session: Session, name: str) -> int:
    return len(session.answers(name))


async def resume(session: Session) -> bool:
    return await queues.resume(session, "other")  # type: ignore[arg-type]  # a session does for a database


async def test_a_resume_wakes_the_wait_queues_of_very_many_limits_in_pages(race: Race) -> None:
    await in_line(race, "rate", parts("r"), "other")
    await in_line(race, "rate", ["r1:x"])
    await race.harness.sql(BUCKETS, [*parts("r"), "r1:x"])
    session = await race.session()
    await session.fetch("queues/pause", "other", None, None)

    assert await resume(session) is True

    assert await later(race) == ["r1:x"], "it stands in no line of this queue"
    assert sent(session, "limits/recheck_rates_of_queue") == PAGES


async def test_a_second_resume_wakes_the_wait_queues_that_the_first_left(race: Race) -> None:
    await in_line(race, "rate", parts("r"), "other")
    await race.harness.sql(BUCKETS, parts("r"))

    assert await resume(await race.session()) is False

    assert await later(race) == []


async def test_a_resume_with_few_wait_queues_is_one_transaction_of_two_statements(race: Race) -> None:
    session = await race.session()
    await session.fetch("queues/pause", "other", None, None)
    session.sent.clear()

    await resume(session)

    assert [name for name, _, _ in session.sent] == ["queues/resume", "limits/recheck_rates_of_queue"]


async def change(session: Session, kind: Any, name: str, n: int) -> None:
    await limits.change(session, kind, name, n, None, None, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("names", [parts("r"), ["r", *parts("r")], ["r"], parts("r", PAGE), []])
async def test_a_rate_limit_change_wakes_all_its_parts_in_pages_and_no_others(
    race: Race, names: list[str]
) -> None:
    others = ["q", "r!", "r-a:1", "r1", "r1:a", "r;", "s:r"]
    await race.harness.sql(BUCKETS, [*names, *others])
    session = await race.session()

    await change(session, "rate", "r", 2)

    assert await later(race) == others
    hastened = session.answers("limits/recheck_rates")
    assert len(hastened) == len(names) // PAGE + 1
    assert hastened[-1] == []


@pytest.mark.parametrize("names", [parts("l"), ["l", *parts("l")], ["l"], parts("l", PAGE), []])
async def test_a_limit_change_finds_the_wait_queues_of_all_its_parts_in_pages(
    race: Race, names: list[str]
) -> None:
    others = ["k", "l!", "l-a:1", "l1", "l1:a", "l;", "m:l"]
    await in_line(race, "limit", [*names, *others])
    session = await race.session()

    await change(session, "concurrency", "l", 2)

    assert await held(race, "limit") == others
    found = [[row["key"] for row in rows] for rows in session.answers("limits/find_waiting")]
    assert [name for page in found for name in page] == names
    assert max(map(len, found)) <= PAGE


async def test_full_buckets_are_deleted_in_pages_and_others_stay(race: Race) -> None:
    await race.harness.sql(BUCKETS, [*parts("gone"), *parts("r")])
    await race.harness.sql("update stepwell.buckets set next_at = null where key < 'r:05'")
    session = await race.session()

    await limits.prune(session)

    kept = await race.harness.sql("select key from stepwell.buckets order by key")
    assert [row["key"] for row in kept] == parts("r"), "some are waited for, and the others not full yet"
    assert sent(session, "limits/prune") == 2 * MANY // PAGE + 1


async def test_a_sweep_of_idle_keys_and_limits_goes_by_pages(race: Race) -> None:
    for hold, name in (("key", "k"), ("limit", "l"), ("rate", "r")):
        await in_line(race, hold, parts(name))
    session = await race.session()
    search = IdleSearch(session)  # type: ignore[arg-type]

    freed = []
    while not search.is_done:
        freed.append(len(await search.look()))

    assert sent(session, "concurrency_keys/find_idle") == PAGES
    assert [await held(race, hold) for hold in ("key", "limit", "rate")] == [[], [], []]
    assert max(freed) <= 3 * PAGE


async def test_a_finished_part_of_the_sweep_restarts_while_the_other_continues(race: Race) -> None:
    await in_line(race, "key", parts("k"))
    search = IdleSearch(await race.session())  # type: ignore[arg-type]
    await search.look()
    await in_line(race, "limit", ["l:new"])
    await in_line(race, "key", ["k:00"])

    await search.look()
    before = await held(race, "limit")
    search.start_over()
    await search.look()

    assert (before, await held(race, "limit")) == (["l:new"], [])
    assert await held(race, "key") == ["k:00", parts("k")[-1]], "two pages after the first one"


async def test_the_sweep_of_idle_keys_starts_over_at_the_end(race: Race) -> None:
    search = IdleSearch(await race.session())  # type: ignore[arg-type]
    for _ in range(2):
        await in_line(race, "key", parts("k"))
        search.start_over()
        while not search.is_done:
            await search.look()

        assert await held(race, "key") == []


async def test_a_page_that_cannot_be_freed_does_not_block_the_next_pages(race: Race) -> None:
    await in_line(race, "key", parts("k"))
    session = await race.session()
    search = IdleSearch(session)  # type: ignore[arg-type]
    session.change("concurrency_keys/admit", ("limit 1\n", "limit 1 / (select 0)\n"))
    with pytest.raises(Exception, match="division by zero"):
        await search.look()
    session.change("concurrency_keys/admit")

    while not search.is_done:
        await search.look()

    assert await held(race, "key") == parts("k", PAGE)


@pytest.mark.parametrize("by", ["a change", "looks"])
async def test_rows_that_wait_for_an_undeclared_limit_are_checked_in_pages(race: Race, by: str) -> None:
    await in_line(race, "limit", parts("nobody"), reason="nobody declares it")
    await in_line(race, "rate", ["nobody", "r1"], reason="nobody declares it")
    session = await race.session()

    if by == "looks":
        search = IdleSearch(session)  # type: ignore[arg-type]
        while not search.is_done:
            await search.look()
    else:
        assert await limits.admit_held(session) == {"default"}

    assert (await held(race, "limit"), await held(race, "rate")) == (parts("nobody"), ["nobody"])
    assert sent(session, "limits/admit_held") == (MANY + 2) // PAGE + 1


async def test_a_sweep_that_finds_room_in_many_wait_queues_admits_few_rows_of_each(
    race: Race, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(concurrency_keys, "PAGE", 1_000)
    monkeypatch.setattr(limits, "FOUND_AT_ONCE", 2 * MANY, raising=False)
    await race.harness.sql("update stepwell.limits set n = 5 where name = 'l'")
    for _ in range(5):
        await in_line(race, "limit", parts("l"))

    assert len(await concurrency_keys.free_idle(await race.session())) == 2 * MANY  # type: ignore[arg-type]
