"""Calls inside `transaction.atomic` are part of Django's transaction."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, transaction

from stepwell import Duplicate, InvalidConnection, IsolationTooHigh, NoTarget, NotFound, Status
from stepwell.contrib.django import engine


class Regret(Exception):
    """Rolls a block back."""


def start(key: str) -> Any:
    """Start one in the block, for a queue without a worker."""
    return engine.sync.start("Fulfil", {"order": 0}, queue="nobodys", key=key, connection=connection)


def start_and_regret(key: str) -> None:
    with transaction.atomic():
        start(key)
        raise Regret


@pytest.fixture(autouse=True)
def _project(project: str) -> Iterator[None]:
    yield
    connection.close()


@pytest.fixture
def key() -> str:
    return uuid4().hex


def is_known(key: str) -> bool:
    try:
        engine.sync.get(key)
    except NotFound:
        return False
    return True


def test_the_commit_of_the_block_starts_the_instance(key: str) -> None:
    with transaction.atomic():
        started = start(key)
        before = is_known(key)

    assert before is False
    assert engine.sync.get(key).id == started.id


def test_an_error_in_the_block_leaves_nothing(key: str) -> None:
    with pytest.raises(Regret):
        start_and_regret(key)

    assert not is_known(key)


def test_a_savepoint_that_is_rolled_back_leaves_nothing_of_its_part(key: str) -> None:
    with transaction.atomic():
        start(key)
        with pytest.raises(Regret):
            start_and_regret(key + "-inner")

    assert is_known(key)
    assert not is_known(key + "-inner")


def test_a_duplicate_does_not_break_the_block(key: str) -> None:
    holder = engine.sync.start("Fulfil", {"order": 0}, queue="nobodys", key=key)

    with transaction.atomic():
        with pytest.raises(Duplicate) as raised:
            start(key)
        start(key + "-other")

    assert raised.value.id == holder.id
    assert is_known(key + "-other")


def test_signals_and_cancels_are_part_of_the_block(key: str) -> None:
    order = engine.sync.start("Fulfil", {"order": 0}, queue="nobodys", key=key)

    with transaction.atomic():
        engine.sync.signal(key, "bound", connection=connection)
        with pytest.raises(NoTarget):
            engine.sync.signal(key + "-nobody", "bound", connection=connection)
        assert engine.sync.cancel(key, connection=connection) is True
        before = (engine.sync.insights.inbox(order.id), order.get().status)

    assert before == ([], Status.RUNNABLE)
    assert [signal.name for signal in engine.sync.insights.inbox(order.id)] == ["bound"]
    assert order.get().status is Status.CANCELLED


def test_a_start_without_a_block_is_refused(key: str) -> None:
    with pytest.raises(InvalidConnection, match=r"with transaction\.atomic\(\):"):
        start(key)

    assert not is_known(key)


def test_a_block_that_has_failed_is_refused(key: str) -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(InvalidConnection, match="has failed; leave the atomic block first"):
            start(key)


def test_a_block_above_read_committed_is_refused(key: str) -> None:
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("set transaction isolation level serializable")
        with pytest.raises(IsolationTooHigh):
            start(key)
        transaction.set_rollback(True)

    assert not is_known(key)
