"""A blocking connection: its statements are sent by the thread that passed it, and by no other."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.pool import NullPool

from stepwell import InvalidConnection, NotFound, SyncEngine
from tests.surfaces.sync.looks import PATIENCE, until
from tests.surfaces.sync.machines import Doubled, Waiter


@pytest.fixture
def connection(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url) as made:
        yield made


def test_every_statement_is_sent_in_the_calling_thread(sync: SyncEngine, url: str) -> None:
    alchemy = create_engine(url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    senders: list[int] = []
    event.listen(alchemy, "before_cursor_execute", lambda *_: senders.append(threading.get_ident()))

    with alchemy.begin() as connection:
        sync.start(Doubled, key="here", connection=connection)
        sync.start_many([Doubled.child(key="there")], connection=connection)
        sync.signal("here", "go", connection=connection)
        sync.signal_many([("here", "go")], connection=connection)
        assert sync.cancel("there", connection=connection)

    assert (set(senders), len(senders) >= 5) == ({threading.get_ident()}, True)
    assert sync.get("here").id > 0


def test_many_threads_each_bring_their_own_connection(sync: SyncEngine, url: str) -> None:
    together = threading.Barrier(8, timeout=PATIENCE)

    def run(number: int) -> int:
        with psycopg.connect(url) as connection:
            together.wait()
            handle = sync.start(Doubled, {"number": number}, connection=connection)
        return int(handle.result(timeout=PATIENCE))

    with sync.worker(), ThreadPoolExecutor(8) as threads:
        assert list(threads.map(run, range(8))) == [number * 2 for number in range(8)]


def test_an_async_connection_is_refused_and_the_error_says_what_to_call(sync: SyncEngine, url: str) -> None:
    async def made() -> tuple[Any, Any]:
        first, second = await asyncpg.connect(url), await psycopg.AsyncConnection.connect(url)
        await first.close()
        await second.close()
        return first, second

    for connection in asyncio.run(made()):
        with pytest.raises(InvalidConnection, match=r"is async; pass it to the engine itself, not to engine\.sync"):
            sync.start(Doubled, connection=connection)


def test_an_error_of_the_driver_reaches_the_caller(
    sync: SyncEngine, connection: psycopg.Connection[Any], url: str
) -> None:
    sync.start(Doubled, key="lost", connection=connection)
    with psycopg.connect(url) as other:
        other.execute("select pg_terminate_backend(%s)", [connection.info.backend_pid])

    with pytest.raises(psycopg.OperationalError) as caught:
        sync.start(Doubled, connection=connection)

    assert caught.traceback[0].path.name == "test_relay.py"
    with pytest.raises(NotFound):
        sync.get("lost")


def test_ctrl_c_while_a_statement_waits_for_a_lock_ends_the_call(
    sync: SyncEngine, connection: psycopg.Connection[Any], url: str
) -> None:
    main, before = threading.get_ident(), signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt() -> None:
        with psycopg.connect(url, autocommit=True) as onlooker:
            waits = "select from pg_locks where pid = %s and not granted"
            until(lambda: onlooker.execute(waits, [connection.info.backend_pid]).rowcount > 0)
        signal.pthread_kill(main, signal.SIGINT)

    try:
        with psycopg.connect(url) as holder, ThreadPoolExecutor(1) as threads:
            sync.start(Waiter, key="contested", connection=holder)
            ended = threads.submit(interrupt)
            with pytest.raises(KeyboardInterrupt):
                sync.start(Waiter, key="contested", connection=connection)
            ended.result(timeout=PATIENCE)
    finally:
        signal.signal(signal.SIGINT, before)
    connection.rollback()

    assert sync.start(Waiter, key="contested", if_exists="return", connection=connection).id == sync.get("contested").id
