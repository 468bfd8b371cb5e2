"""What the database itself refuses about interactions, from any client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from tests.store.plans import rolled_back

OPEN = ("queued", "waiting", "dispatching", "dispatched")
ENDED = ("completed", "timed_out", "failed", "cancelled")
NOW = datetime.now(UTC)
NEEDS: dict[str, dict[str, Any]] = {
    "dispatching": {"worker_id": 1},
    "completed": {"finished_at": NOW, "reply": "1"},
    **{status: {"finished_at": NOW} for status in ENDED[1:]},
}  # what an interaction of each status needs besides


@pytest.fixture
async def connection(shared_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection inside a transaction that is rolled back."""
    opened = await asyncpg.connect(shared_url)
    async with rolled_back(opened):
        yield opened
    await opened.close()


async def insert(connection: asyncpg.Connection, table: str, columns: dict[str, Any]) -> None:
    """Insert a row; a failure leaves the transaction usable."""
    names = ", ".join(f'"{name}"' for name in columns)
    places = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
    async with connection.transaction():
        await connection.execute(
            f"insert into stepwell.{table} ({names}) overriding system value values ({places})", *columns.values()
        )


async def unit(connection: asyncpg.Connection, **columns: Any) -> None:
    """Insert a unit that differs from a simple open one in the given columns."""
    plain = {
        "instance_id": 1, "created_at": NOW, "visit": 1, "version": 1, "is_sent": False, "requires_token": False,
        "tenant": "", "machine": "order", "step": "ship", "transport": "manual", "reply_type": "x",
        "on_timeout": "wake",
    }  # fmt: skip
    await insert(connection, "await_units", plain | columns)


async def question(connection: asyncpg.Connection, **columns: Any) -> None:
    """Insert an interaction that differs from a simple open one in the given columns."""
    plain = {
        "id": uuid4(), "correlation": uuid4(), "unit_id": 1, "instance_id": 1, "created_at": NOW, "next_at": NOW,
        "tenant": "", "transport": "manual", "status": "dispatched", "idempotency_key": "", "request": "1",
    }  # fmt: skip
    await insert(connection, "interactions", plain | columns)


def refused(constraint: str) -> Any:
    """Expect that exactly this constraint refuses the row."""
    return pytest.raises(asyncpg.IntegrityConstraintViolationError, match=f'"{constraint}"')


@pytest.mark.parametrize("status", ["waiting", "completed", "timed_out", "failed", "cancelled"])
async def test_a_unit_of_each_status_is_accepted(connection: asyncpg.Connection, status: str) -> None:
    await unit(connection, status=status, finished_at=None if status == "waiting" else NOW)

    assert await connection.fetchval("select status from stepwell.await_units") == status


async def test_a_unit_of_an_unknown_kind_is_refused(connection: asyncpg.Connection) -> None:
    with refused("status_known"):
        await unit(connection, status="sleeping", finished_at=NOW)
    with refused("on_timeout_known"):
        await unit(connection, on_timeout="shrug")


async def test_only_a_unit_that_has_ended_has_an_end(connection: asyncpg.Connection) -> None:
    with refused("only_ended_has_end"):
        await unit(connection, finished_at=NOW)
    with refused("only_ended_has_end"):
        await unit(connection, status="completed")


@pytest.mark.parametrize(
    "counts",
    [{"opened": 1, "resolved": 2}, {"opened": 1, "in_flight": 2}, {"opened": 2, "resolved": 1, "in_flight": 2},
     {"opened": 1, "resolved": -1}, {"opened": 1, "in_flight": -1}],
)  # fmt: skip
async def test_a_unit_counts_no_more_than_it_has_opened(connection: asyncpg.Connection, counts: dict[str, int]) -> None:
    with refused("no_more_than_opened"):
        await unit(connection, **counts)


async def test_no_more_interactions_are_open_than_the_window_allows(connection: asyncpg.Connection) -> None:
    with refused("no_more_than_window"):
        await unit(connection, opened=3, in_flight=3, window=2)
    await unit(connection, opened=3, in_flight=2, window=2)
    await unit(connection, opened=3, in_flight=3, instance_id=2)  # without a window: it is one interaction


async def test_the_number_of_open_interactions_is_never_negative(connection: asyncpg.Connection) -> None:
    """An end that is counted twice is refused, instead of waking the instance too early."""
    with refused("continuing_not_negative"):
        await unit(connection, opened=1, resolved=1, continuing=-1)


async def test_an_instance_has_one_unit_per_visit(connection: asyncpg.Connection) -> None:
    """A rerun after a crash finds its unit, and cannot open a second one."""
    await unit(connection, id=1, visit=1)
    await unit(connection, id=2, visit=2)

    with refused("await_units_visit"):
        await unit(connection, id=3, visit=2)
    with refused("await_units_pkey"):
        await unit(connection, id=2, visit=3)


@pytest.mark.parametrize("status", OPEN + ENDED)
async def test_an_interaction_of_each_status_is_accepted(connection: asyncpg.Connection, status: str) -> None:
    await question(connection, status=status, **NEEDS.get(status, {}))

    assert await connection.fetchval("select status from stepwell.interactions") == status


async def test_an_interaction_of_an_unknown_status_is_refused(connection: asyncpg.Connection) -> None:
    with refused("status_known"):
        await question(connection, status="forgotten", finished_at=None)


@pytest.mark.parametrize("status", OPEN + ENDED)
async def test_only_an_ended_interaction_has_an_end(connection: asyncpg.Connection, status: str) -> None:
    needs = NEEDS.get(status, {})

    with refused("only_ended_has_end"):
        await question(connection, status=status, **{**needs, "finished_at": None if status in ENDED else NOW})


@pytest.mark.parametrize("status", OPEN + ENDED)
async def test_only_a_completed_interaction_has_a_reply(connection: asyncpg.Connection, status: str) -> None:
    needs = NEEDS.get(status, {})

    with refused("only_completed_has_reply"):
        await question(connection, status=status, **{**needs, "reply": None if status == "completed" else "1"})


async def test_an_interaction_that_is_being_sent_has_a_sender(connection: asyncpg.Connection) -> None:
    with refused("dispatching_has_worker"):
        await question(connection, status="dispatching")


async def test_an_item_is_asked_about_once(connection: asyncpg.Connection) -> None:
    await question(connection, unit_id=1, item=0)
    await question(connection, unit_id=1, item=1)
    await question(connection, unit_id=2, item=0)

    with refused("interactions_item"):
        await question(connection, unit_id=1, item=1)


async def test_an_interaction_has_one_correlation_id_in_its_tenant(connection: asyncpg.Connection) -> None:
    address, id_ = uuid4(), uuid4()
    await question(connection, id=id_, correlation=address, tenant="a", item=0)
    await question(connection, correlation=address, tenant="b", item=1)

    with refused("interactions_correlation"):
        await question(connection, correlation=address, tenant="a", item=2)
    with refused("interactions_pkey"):
        await question(connection, id=id_, item=3)


async def test_a_type_of_replies_is_stored_once(connection: asyncpg.Connection) -> None:
    await insert(connection, "reply_types", {"id": "x", "name": "int", "reference": "{}"})

    with refused("reply_types_pkey"):
        await insert(connection, "reply_types", {"id": "x", "name": "str", "reference": "{}"})
