"""Whatever happens to interactions, in any order: the counts of a unit are those of its interactions."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from stepwell import Handle, StepwellError
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.features.interactions.askers import Recorder
from tests.features.interactions.looks import interaction_rows
from tests.features.interactions.machines import Batch

SEEDS = 6
WRONG = """
with seen as (
  select u.*, i.status as instance_status, i.await_unit_id,
         count(*) filter (where q.status in ('waiting', 'dispatching', 'dispatched')) as is_out,
         count(*) filter (where q.status = 'queued') as queued,
         count(*) filter (where q.finished_at is not null) as ended, count(*) as asked
  from stepwell.await_units u
  join stepwell.interactions q on q.unit_id = u.id
  join stepwell.instances i on i.id = u.instance_id
  group by u.id, i.id
)
select s.* from seen s
where s.opened <> s.asked
   or s.status = 'waiting' and (s.in_flight <> s.is_out or s.resolved <> s.ended
                                or s.queued > 0 and s.in_flight < s."window"
                                or s.queued + s.is_out = 0
                                or s.instance_status <> 'awaiting_external' or s.await_unit_id <> s.id)
   or s.status <> 'waiting' and (s.is_out + s.queued > 0
                                 or s.instance_status = 'awaiting_external' and s.await_unit_id = s.id)"""


class Play:
    """One instance that asks about some items, and what may happen to it."""

    def __init__(self, h: Harness, batch: Handle, chance: random.Random) -> None:
        self._h = h
        self._batch = batch
        self._chance = chance

    async def act(self) -> str:
        """Do one of the things that may happen; returns which."""
        acts: list[Callable[[], Awaitable[Any]]] = [self.complete] * 5 + [
            self.complete_many, self.wait, self.cancel, self.retry, self.retry, self.restart, self._h.drain,
        ]  # fmt: skip
        act = self._chance.choice(acts)
        try:
            await act()
        except StepwellError as refusal:
            return f"{act.__name__}: {refusal}"
        return act.__name__

    async def complete(self) -> None:
        rows = await interaction_rows(self._h, self._batch.id)
        row = self._chance.choice(rows)
        await self._h.engine.complete(interaction=str(row["id"]), reply=self._chance.choice([1, 1, 2]))

    async def complete_many(self) -> None:
        for _ in range(4):
            await self.complete()

    async def wait(self) -> None:
        await self._h.advance(timedelta(seconds=self._chance.choice([20, 61])))
        await self._h.drain()

    async def cancel(self) -> None:
        await self._h.engine.cancel(self._batch.id)

    async def retry(self) -> None:
        await self._h.engine.retry(self._batch.id)

    async def restart(self) -> None:
        await self._h.engine.restart(self._batch.id, step=self._chance.choice([Batch.start, Batch.collect]))


async def test_counts_are_right_after_any_order_of_events(make_harness: MakeHarness) -> None:
    """Scenarios 35, 46, 71, 72, 76; Gaps 13, 14: completions, deadlines, cancels, retries and restarts in any order."""
    h = await make_harness([Batch], transports=[Recorder()])
    for seed in range(SEEDS):
        chance = random.Random(seed)  # noqa: S311 - a play, not a secret
        state = {
            "items": [*range(chance.randint(1, 6))], "window": chance.randint(1, 3), "seconds": 60,
            "transport": chance.choice(["manual", "recorder"]), "on_timeout": chance.choice(["wake", "fail"]),
        }  # fmt: skip
        batch = await h.engine.start(Batch, state)
        await h.drain()
        play, done = Play(h, batch, chance), [f"seed {seed}, {state}"]

        for _ in range(14):
            done.append(await play.act())
            assert await h.sql(WRONG) == [], done
