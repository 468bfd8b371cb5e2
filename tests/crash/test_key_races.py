"""Waiting behind a busy key against freeing it: no row is left behind a key that nobody holds."""

from __future__ import annotations

import pytest

from stepwell._core.records import Claim
from stepwell._store import flushes, instances, keys
from tests.support.race import Plain, Race, Session, done

KEY = "k"


async def busy_and_behind(race: Race, session: Session) -> tuple[Claim, int]:
    """The claim that holds the key, and the row that found it busy."""
    await race.harness.engine.start_many([Plain.child({}, concurrency_key=KEY)] * 2)
    claimed = await race.claim(session, await race.worker(session))
    return claimed.claims[0], claimed.busy[0].id


async def test_a_row_held_before_its_key_is_freed_is_let_go_by_who_frees_it(race: Race) -> None:
    holding, freeing = await race.session(), await race.session()
    holder, behind = await busy_and_behind(race, freeing)

    assert list(await keys.hold(holding, [behind], [KEY])) == [behind]  # type: ignore[arg-type]
    flushed = await flushes.flush(freeing, [done(holder)])  # type: ignore[arg-type]

    assert flushed.freed_queues == ["default"]
    assert await race.row(behind, "status", "hold") == ("runnable", None)


async def test_a_row_that_comes_after_its_key_was_freed_is_not_held(race: Race) -> None:
    holding, freeing = await race.session(), await race.session()
    holder, behind = await busy_and_behind(race, freeing)

    await flushes.flush(freeing, [done(holder)])  # type: ignore[arg-type]

    assert list(await keys.hold(holding, [behind], [KEY])) == []  # type: ignore[arg-type]
    assert await race.row(behind, "status", "hold") == ("runnable", None)


async def test_who_frees_a_key_waits_for_a_hold_under_way_and_lets_its_row_go(race: Race) -> None:
    holding, freeing = await race.session(), await race.session()
    holder, behind = await busy_and_behind(race, freeing)
    await holding.begin()
    assert list(await keys.hold(holding, [behind], [KEY])) == [behind]  # type: ignore[arg-type]

    flushing = await race.blocked(freeing, flushes.flush(freeing, [done(holder)]))  # type: ignore[arg-type]
    await holding.commit()

    assert (await flushing).freed_queues == ["default"]
    assert await race.row(behind, "status", "hold") == ("runnable", None)


async def test_who_holds_a_row_waits_for_a_freeing_under_way_and_does_not_hold_it(race: Race) -> None:
    holding, freeing = await race.session(), await race.session()
    holder, behind = await busy_and_behind(race, freeing)
    await freeing.begin()
    await flushes.flush(freeing, [done(holder)])  # type: ignore[arg-type]

    waiting = await race.blocked(holding, keys.hold(holding, [behind], [KEY]))  # type: ignore[arg-type]
    await freeing.commit()

    assert await waiting == {}
    assert await race.row(behind, "status", "hold") == ("runnable", None)


@pytest.mark.parametrize("first", ["hold", "free"])
async def test_without_the_lock_on_the_key_the_wake_up_would_be_lost_and_only_the_reaper_would_find_it(
    race: Race, first: str
) -> None:
    holding, freeing = await race.session(), await race.session()
    holder, behind = await busy_and_behind(race, freeing)
    for session in (holding, freeing):
        session.change("keys/lock", ("pg_advisory_xact_lock(k.hash)", "k.hash"))
        await session.begin()

    if first == "hold":
        await keys.hold(holding, [behind], [KEY])  # type: ignore[arg-type]
        await flushes.flush(freeing, [done(holder)])  # type: ignore[arg-type]
    else:
        await flushes.flush(freeing, [done(holder)])  # type: ignore[arg-type]
        await keys.hold(holding, [behind], [KEY])  # type: ignore[arg-type]
    await holding.commit()
    await freeing.commit()

    assert await race.row(behind, "status", "hold") == ("runnable", "key")
    assert await keys.free_idle(await race.session()) == ["default"]  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["release", "reap"])
async def test_a_key_that_is_given_back_or_reaped_while_a_row_is_being_held_lets_that_row_go(
    race: Race, how: str
) -> None:
    holding, freeing = await race.session(), await race.session()
    holder, behind = await busy_and_behind(race, freeing)
    await race.end_lease(holder.worker_id)
    await holding.begin()
    assert list(await keys.hold(holding, [behind], [KEY])) == [behind]  # type: ignore[arg-type]

    call = (
        instances.reap(freeing, [(holder.id, KEY, None)], 10)  # type: ignore[arg-type]
        if how == "reap"
        else instances.release(freeing, holder.worker_id, [(holder.id, holder.fence, KEY)])  # type: ignore[arg-type]
    )
    ending = await race.blocked(freeing, call)
    await holding.commit()
    await ending

    assert await race.row(behind, "status", "hold") == ("runnable", None)
    assert await race.row(holder.id, "status", "hold") == ("runnable", None)
