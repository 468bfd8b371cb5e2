"""Limits through the SQL functions, and through a caller's connection."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from stepwell import Handle, Hold, Status
from stepwell.testing import Harness
from tests.support.waiting import eventually, held
from tests.surfaces.sql_and_drivers.machines import Busy, Note, Paced

NEEDS = "select concurrency_limit, own_limit, rate_limit, weight from stepwell.instances where id = $1"
STARTS: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
    ({"machine": "Note"}, (None, None, None, 1)),
    ({"machine": "Note", "concurrency_limit": "desk:7"}, ("desk:7", "desk:7", None, 1)),
    ({"machine": "Note", "rate_limit": "mail", "weight": 3}, (None, None, "mail", 3)),
    ({"machine": "Paced"}, ("desk:main", None, "mail", 2)),
    ({"machine": "Paced", "concurrency_limit": "desk"}, ("desk:main", "desk", "mail", 2)),
    ({"machine": "Paced", "rate_limit": "desk:x"}, ("desk:main", None, "desk:x", 1)),
    ({"machine": "Paced", "weight": 1}, ("desk:main", None, "mail", 1)),
    ({"machine": "Paced", "step": "end", "concurrency_limit": "desk"}, ("desk", "desk", None, 1)),
]


async def test_a_start_in_sql_needs_its_own_limits_and_those_of_its_step(
    h: Harness, sql: asyncpg.Connection
) -> None:
    for options, needs in STARTS:
        named = ", ".join(f"{name} => ${number}" for number, name in enumerate(options, start=1))
        one = await sql.fetchval(f"select stepwell.start({named})", *options.values())
        [many] = await sql.fetch("select id from stepwell.start_many(jsonb_build_array($1::jsonb))", _json(options))
        [by_python] = await h.engine.start_many([_entry(options)])
        ids = (one, many["id"], by_python.id)  # type: ignore[union-attr]

        assert [tuple(*(await h.sql(NEEDS, id_))) for id_ in ids] == [needs] * 3, options


async def test_a_start_in_a_callers_transaction_carries_its_limits(h: Harness, connection: asyncpg.Connection) -> None:
    async with connection.transaction():
        plain = await h.engine.start(Note, concurrency_limit=("desk", 1), rate_limit="mail", connection=connection)
        paced = await h.engine.start(Paced, concurrency_limit="desk", connection=connection)

    assert tuple(*(await h.sql(NEEDS, plain.id))) == ("desk:1", "desk:1", "mail", 1)
    assert tuple(*(await h.sql(NEEDS, paced.id))) == ("desk:main", "desk", "mail", 2)


async def test_a_cancel_in_a_callers_transaction_frees_the_slot_after_the_commit(
    h: Harness, connection: asyncpg.Connection
) -> None:
    """Only the cancel can have done it: the holder does not end by itself, and the reaper runs once an hour."""
    async with h.engine.worker(reap=timedelta(hours=1)):
        holder = await h.engine.start(Busy, concurrency_limit="desk")
        await eventually(lambda: _is_executing(holder))
        behind = await h.engine.start(Note, concurrency_limit="desk")
        await held(behind)

        async with connection.transaction():
            await h.engine.cancel(holder.id, connection=connection)
            assert (await behind.get()).hold is Hold.LIMIT

        await behind.result(10)
        assert (await holder.get()).status is Status.CANCELLED


async def _is_executing(handle: Handle) -> bool:
    return (await handle.get()).status is Status.EXECUTING


def _json(options: dict[str, Any]) -> str:
    return json.dumps(options)


def _entry(options: dict[str, Any]) -> Any:
    given = {name: _ref(value) if name.endswith("_limit") else value for name, value in options.items()}
    machine = {"Note": Note, "Paced": Paced}[given.pop("machine")]
    return machine.child(None, **given)


def _ref(text: str) -> Any:
    name, _, part = text.partition(":")
    return (name, part) if part else name


@pytest.mark.parametrize("role", ["stepwell_client"])
async def test_the_client_role_cannot_change_limits(h: Harness, role: str) -> None:
    connection = await asyncpg.connect(h.url)
    await connection.execute(f"set role {role}")

    for statement in ("update stepwell.limits set n = 9", "select * from stepwell.buckets"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(statement)
    await connection.close()
