"""Django's connections in sync steps: never broken, never too old, never inside another step's transaction."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import override_settings

from stepwell import Engine, InstanceFailed, Status
from stepwell._store.testing import databases
from stepwell.contrib.django import make_engine


@pytest.fixture
async def working(project: str) -> AsyncIterator[Engine]:
    """The project's engine with a worker that has one thread, so that steps follow one another in it."""
    async with make_engine() as engine, engine.worker({"default": 1}):
        yield engine
        await result(engine, "hang_up")


async def result(engine: Engine, machine: str, **state: Any) -> Any:
    return await (await engine.start(machine, state)).result(timeout=30)


@pytest.fixture
def kept_connections(project: str) -> Any:
    """Connections that Django keeps between two steps, and checks before it uses them again."""
    entry = connections.settings["default"]
    before = entry["CONN_MAX_AGE"], entry["CONN_HEALTH_CHECKS"]
    entry["CONN_MAX_AGE"], entry["CONN_HEALTH_CHECKS"] = None, True
    yield
    entry["CONN_MAX_AGE"], entry["CONN_HEALTH_CHECKS"] = before


async def test_a_machine_of_the_project_uses_the_models(working: Engine) -> None:
    from bookshop.models import Order  # noqa: PLC0415 - importable once the project is set up

    order = await sync_to_async(Order.objects.create)(title="Dune")
    title = await result(working, "Fulfil", order=order.id)

    await sync_to_async(order.refresh_from_db)()
    assert (title, order.step) == ("Dune", "shipped")


async def test_a_connection_is_closed_after_the_step_if_it_is_not_to_be_kept(working: Engine, project: str) -> None:
    pid = await result(working, "backend_pid")

    assert await databases.query(project, "select from pg_stat_activity where pid = $1 and state <> 'idle'", pid) == []
    assert await result(working, "backend_pid") != pid


async def test_a_connection_that_is_kept_is_the_same_in_the_next_step(
    kept_connections: None, working: Engine
) -> None:
    assert await result(working, "backend_pid") == await result(working, "backend_pid")


async def test_a_step_after_the_server_cut_an_idle_connection_works(
    kept_connections: None, working: Engine, project: str
) -> None:
    pid = await result(working, "backend_pid")
    await databases.query(project, "select pg_terminate_backend($1, 5000)", pid)

    assert await result(working, "backend_pid") != pid


async def test_a_step_after_one_with_a_broken_connection_works(kept_connections: None, working: Engine) -> None:
    before = await result(working, "backend_pid")
    broken = await working.start("break_connection")
    with pytest.raises(InstanceFailed):
        await broken.result(timeout=30)

    assert await result(working, "backend_pid") != before
    assert (await working.get(broken.id)).status is Status.FAILED


async def test_a_transaction_left_open_is_rolled_back_before_the_next_step(
    working: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "stepwell"):
        was_open, thread = await result(working, "leave_open", title="never")

    is_open, found, same_thread = await result(working, "look", title="never")
    assert was_open is True
    assert thread == same_thread
    assert (is_open, found) == (False, 0)
    assert "a step left a transaction open on 'default'" in caplog.text


async def test_autocommit_left_off_is_on_again_in_the_next_step(working: Engine) -> None:
    await result(working, "leave_autocommit_off", title="neither")

    assert (await result(working, "look", title="neither"))[:2] == [False, 0]


async def test_the_engine_of_the_project_cleans_connections_around_its_steps(project: str) -> None:
    with override_settings(STEPWELL={}):
        from stepwell.contrib.django.connections import clean_connections  # noqa: PLC0415

        assert make_engine()._around_sync_steps is clean_connections
