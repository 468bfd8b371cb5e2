"""The database fails while a step asks about many items: that is no attempt, and no item is asked about twice."""

from __future__ import annotations

import pytest

from stepwell import Context, Outcome
from stepwell._worker.running import ask_each
from stepwell.testing import armed
from tests.conftest import MakeHarness
from tests.features.interactions.machines import Batch

CUT = (
    "select pg_terminate_backend(pid) from pg_stat_activity "
    "where datname = current_database() and application_name = 'stepwell worker'"
)


class Careful(Batch):
    """Reports whether `handle` ever ran."""

    handled: list[str] = []  # noqa: RUF012 - the test's own

    async def handle(self, error: BaseException, ctx: Context[Batch.State]) -> Outcome:
        self.handled.append(repr(error))
        return await super().handle(error, ctx)  # type: ignore[misc,no-any-return]


async def test_connections_that_break_between_chunks_only_delay_the_filling(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask_each, "CHUNK", 3)
    h = await make_harness([Careful])
    batch = await h.engine.start(Careful, {"items": list(range(8)), "window": 4})

    with armed("ask_each.appended", hold=True) as appended:
        async with h.engine.worker() as worker:
            await appended.reached(1)
            await h.sql(CUT)
            appended.release()
            settled = await batch.wait(until="settled", timeout=30)
            tally = worker.stats

    rows = await h.sql("select item, status from stepwell.interactions order by item")
    assert [tuple(row) for row in rows] == [(n, "dispatched" if n < 4 else "queued") for n in range(8)]
    assert (settled.status, settled.attempt, Careful.handled) == ("awaiting_external", 0, [])
    assert tally.reaped == 0
