"""A hold behind a busy key, against freeing the key: no row stays held behind a free key."""

from __future__ import annotations

import pytest

from stepwell._core.instance import Claim
from stepwell._store import concurrency_keys, instances
from stepwell._store.operations import commit
from tests.support.commits import full_path
from tests.support.race import Plain, Race, Session, done

KEY = "k"


async def busy_and_behind(race: Race, session: Session) -> tuple[Claim, int]:
    """The claim that has the key, and the row that found it busy."""
    await race.harness.engine.start_many([Plain.child({}, concurrency_key=KEY)] * 2)
    claimed = await race.claim(session, await race.worker(session))
    return claimed.claims[0], claimed.busy[0].id


async def test_a_row_held_before_its_key_is_freed_is_admitted_by_the_freeing(race: Race) -> None:
    holding, freeing = await race.session(), await race.session()
    holder, behind = await busy_and_behind(race, freeing)

    assert list(await concurrency_keys.hold(holding, [behind], [KEY])) == [behind]  # type: ignore[arg-type]
    flushed = await commit.commit(freeing, [done(holder)], full_path())  # type: ignore[arg-type]

    assert flushed.freed_queues == ["default"]
    assert await race.row(behind, "status", "hold") == ("runnable", None)


async def test_a_row_that_comes_after_its_key_was_freed_is_not_held(race: Race) -> None:
    holding, freeing = await race.session(), await race.session()
    holder, behind = await busy_and_behind(race, freeing)

    await commit.commit(freeing, [done(holder)], full_path())  # type: ignore[arg-type]

    assert list(await concurrency_keys.hold(holding, [behind], [KEY])) == []  # type: ignore[arg-type]
    assert await race.row(behind, "status", "hold") == ("runnable", None)


async def test_freeing_a_key_waits_for_an_uncommitted_hold_and_admits_its_row(race: Race) -> None:
    holding, freeing = await race.session(), await race.session()
    holder, behind = await busy_and_behind(race, freeing)
    await holding.begin()
    assert list(await concurrency_keys.hold(holding, [behind], [KEY])) == [behind]  # type: ignore[arg-type]

    flushing = await race.blocked(freeing, commit.commit(freeing, [done(holder)], full_path()))  # type: ignore[arg-type]
    await holding.commit()

    assert (await flushing).freed_queues == ["default"]
    assert await race.row(behind, "status", "hold") == ("runnable", None)


async def test_a_hold_waits_for_an_uncommitted_freeing_and_leaves_the_row_unheld(race: Race) -> None:
    holding, freeing = await race.session(), await race.session()
    holder, behind = await busy_and_behind(race, freeing)
    await freeing.begin()
    await commit.commit(freeing, [done(holder)], full_path())  # type: ignore[arg-type]

    waiting = await race.blocked(holding, concurrency_keys.hold(holding, [behind], [KEY]))  # type: ignore[arg-type]
    await freeing.commit()

    assert await waiting == {}
    assert await race.row(behind, "status", "hold") == ("runnable", None)


@pytest.mark.parametrize("first", ["hold", "free"])
async def test_without_the_keys_lock_only_the_reaper_would_admit_the_row(
    race: Race, first: str
) -> None:
    holding, freeing = await race.session(), await race.session()
    holder, behind = await busy_and_behind(race, freeing)
    for session in (holding, freeing):
        session.change("concurrency_keys/lock", ("for no key update", ""))
        await session.begin()

    if first == "hold":
        await concurrency_keys.hold(holding, [behind], [KEY])  # type: ignore[arg-type]
        await commit.commit(freeing, [done(holder)], full_path())  # type: ignore[arg-type]
    else:
        await commit.commit(freeing, [done(holder)], full_path())  # type: ignore[arg-type]
        await concurrency_keys.hold(holding, [behind], [KEY])  # type: ignore[arg-type]
    await holding.commit()
    await freeing.commit()

    assert await race.row(behind, "status", "hold") == ("runnable", "key")
    assert await concurrency_keys.free_idle(await race.session()) == ["default"]  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["release", "reap"])
async def test_a_key_released_or_reaped_during_a_hold_admits_the_held_row(
    race: Race, how: str
) -> None:
    holding, freeing = await race.session(), await race.session()
    holder, behind = await busy_and_behind(race, freeing)
    await race.end_lease(holder.worker_id)
    await holding.begin()
    assert list(await concurrency_keys.hold(holding, [behind], [KEY])) == [behind]  # type: ignore[arg-type]

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
