"""The SQL functions against one another and against the engine: which call waits, and what the second one finds."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg
import pytest

from stepwell import Status
from tests.support.race import Race, Session, done


async def call(session: Session, door: str, *args: Any) -> Any:
    return await session.connection.fetchval(f"select stepwell.{door}", *args)


@pytest.fixture
async def sessions(race: Race) -> tuple[Session, Session]:
    await race.harness.engine.migrate()
    return await race.session(), await race.session()


@pytest.mark.parametrize("commits", [True, False])
async def test_a_start_waits_for_an_uncommitted_start_of_its_key(
    race: Race, sessions: tuple[Session, Session], commits: bool
) -> None:
    """Afterwards it finds the key taken or, after a rollback, free."""
    one, other = sessions
    transaction = one.connection.transaction()
    await transaction.start()
    first = await call(one, "start('Plain', key => 'k')")

    waiting = await race.blocked(other, call(other, "start('Plain', key => 'k', if_exists => 'return')"))
    await (transaction.commit() if commits else transaction.rollback())

    second = await waiting
    assert (second == first) is commits
    assert await race.row(second, "status", "key") == ("runnable", "k")


async def test_a_start_waits_for_the_cancel_of_its_keys_holder_and_gets_the_key(
    race: Race, sessions: tuple[Session, Session]
) -> None:
    one, other = sessions
    holder = await call(one, "start('Plain', key => 'k')")
    transaction = one.connection.transaction()
    await transaction.start()
    await call(one, "cancel(key => 'k')")

    waiting = await race.blocked(other, call(other, "start('Plain', key => 'k')"))
    await transaction.commit()

    assert await waiting not in (None, holder)


async def test_a_start_waits_for_the_end_of_its_keys_holder_and_gets_the_key(
    race: Race, sessions: tuple[Session, Session]
) -> None:
    one, other = sessions
    holder = await call(one, "start('Plain', key => 'k')")
    [claim] = (await race.claim(one, await race.worker(one))).claims
    await one.begin()
    await race.flush(one, [done(claim)])

    waiting = await race.blocked(other, call(other, "start('Plain', key => 'k')"))
    await one.commit()

    assert await waiting != holder
    assert await race.row(holder, "status") == ("done",)


async def test_a_start_that_waited_for_the_prune_of_its_key_finds_the_tombstone(
    race: Race, sessions: tuple[Session, Session]
) -> None:
    one, other = sessions
    holder = await call(one, "start('Plain', key => 'k', key_scope => 'forever')")
    await call(one, "cancel(key => 'k')")
    await one.begin()
    await one.connection.execute("insert into stepwell.tombstones values ('', 'k', $1, now())", holder)
    await one.connection.execute("delete from stepwell.instances")

    waiting = await race.blocked(other, call(other, "start('Plain', key => 'k', if_exists => 'return')"))
    await one.commit()

    assert await waiting == holder
    assert await race.harness.sql("select from stepwell.instances") == []


@pytest.mark.parametrize("has_successor", [True, False])
async def test_a_signal_to_an_ending_holder_reaches_its_successor_or_no_target(
    race: Race, sessions: tuple[Session, Session], has_successor: bool
) -> None:
    one, other = sessions
    await call(one, "start('Plain', key => 'k')")
    [claim] = (await race.claim(one, await race.worker(one))).claims
    await one.begin()
    await race.flush(one, [done(claim)])

    waiting = await race.blocked(other, call(other, "signal('n', key => 'k')"))
    successor = await call(one, "start('Plain', key => 'k')") if has_successor else None
    await one.commit()

    if successor:
        assert await waiting == successor
    else:
        with pytest.raises(asyncpg.PostgresError, match="nobody to signal"):
            await waiting
    rows = await race.harness.sql("select instance_id from stepwell.signals")
    assert [row["instance_id"] for row in rows] == ([successor] if successor else [])


async def test_a_group_commit_does_not_wait_for_an_uncommitted_signal_by_sql(
    race: Race, sessions: tuple[Session, Session]
) -> None:
    one, other = sessions
    await call(one, "start('Plain')")
    await call(one, "start('Plain')")
    first, second = (await race.claim(one, await race.worker(one))).claims
    transaction = other.connection.transaction()
    await transaction.start()
    await call(other, "signal('n', id => $1)", first.id)

    committed = await race.flush(one, [done(first), done(second)])
    await transaction.commit()

    assert committed == [second.id]
    assert (await race.row(first.id, "status"))[0] == Status.EXECUTING


async def test_two_sql_batches_of_the_same_keys_in_opposite_order_do_not_deadlock(
    race: Race, sessions: tuple[Session, Session]
) -> None:
    one, other = sessions
    middle = await race.session()
    transaction = middle.connection.transaction()
    await transaction.start()
    await call(middle, "start('Plain', key => 'm')")
    batches = []
    for session, keys in ((one, "amz"), (other, "zma")):
        entries = "[" + ", ".join(f'{{"machine": "Plain", "key": "{key}"}}' for key in keys) + "]"
        starting = session.connection.fetch("select * from stepwell.start_many($1)", entries)
        batches.append(await race.blocked(session, starting))

    await transaction.rollback()
    first, second = await asyncio.gather(*batches)

    by_key = {key: {row["id"] for rows, keys in ((first, "amz"), (second, "zma")) for row in rows
                    if keys[row["position"]] == key} for key in "amz"}  # fmt: skip
    assert [len(ids) for ids in by_key.values()] == [1, 1, 1]
    assert sum(row["is_duplicate"] for row in (*first, *second)) == 3
