"""Rule 9 of the store: workers wake at the caller's commit, or by polling with notify=False."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from stepwell import Status
from stepwell.testing import Harness
from tests.surfaces.sql_and_drivers.machines import Note, Order

WORDS = ("stepwell_work", "stepwell_due", "stepwell_revoked", "stepwell_idle", "stepwell_settled")
RARELY = {"poll": timedelta(minutes=10), "max_poll": timedelta(minutes=10)}


class Ear:
    """Receives every notification of the database, in order."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._heard: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def listen(self) -> None:
        for channel in (*WORDS, "end"):
            await self._connection.add_listener(channel, self._hear)

    def _hear(self, _: object, __: int, channel: str, payload: object) -> None:
        self._heard.put_nowait((channel, str(payload)))

    async def close(self) -> None:
        await self._connection.close()

    async def until_now(self) -> list[tuple[str, str]]:
        """All notifications up to this moment."""
        await self._connection.execute("notify \"end\"")
        heard = []
        while (notice := await asyncio.wait_for(self._heard.get(), 20))[0] != "end":
            heard.append(notice)
        return [notice for notice in heard if notice[0] != "stepwell_settled"]  # of the test's own waiting


async def test_a_worker_that_rarely_polls_wakes_at_the_commit(h: Harness, connection: asyncpg.Connection) -> None:
    async with h.engine.worker(**RARELY):
        async with connection.transaction():
            note = await h.engine.start(Note, {"a": 1}, connection=connection)
            order = await h.engine.start(Order, key="order:7", connection=connection)
            await h.engine.signal("order:7", "paid", 5, connection=connection)

        assert await note.result(timeout=20) == {"a": 1}
        assert await order.result(timeout=20) == 5


@pytest.mark.parametrize("notify", [True, False])
async def test_notifications_are_sent_with_the_commit_unless_turned_off(
    h: Harness, connection: asyncpg.Connection, notify: bool
) -> None:
    waiting = await h.engine.start(Order, key="order:1")
    async with h.engine.worker():
        await waiting.wait(until="settled", timeout=20)
    ear = Ear(await asyncpg.connect(h.url))
    await ear.listen()

    async with connection.transaction():
        said = {"connection": connection, "notify": notify}
        await h.engine.start_many([Note, Note.child(queue="other"), Note.child(delay=timedelta(hours=1))], **said)
        await h.engine.signal("order:1", "paid", **said)
        await h.engine.start(Order, key="order:2", **said)
        await h.engine.cancel("order:2", **said)
        before = await ear.until_now()

    assert before == []
    expected = {("stepwell_work", "default"), ("stepwell_work", "other"), ("stepwell_due", "")}
    assert set(await ear.until_now()) == (expected if notify else set())
    await ear.close()


async def test_an_instance_started_without_a_notification_is_found_by_polling(
    h: Harness, connection: asyncpg.Connection
) -> None:
    async with h.engine.worker(poll=timedelta(milliseconds=50), max_poll=timedelta(milliseconds=50)):
        async with connection.transaction():
            note = await h.engine.start(Note, connection=connection, notify=False)

        assert (await note.wait(timeout=20)).status is Status.DONE
