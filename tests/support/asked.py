"""Interactions, inserted and completed step by step, and the invariants that hold whatever happens to them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import asyncpg
from msgspec.structs import replace

from stepwell import Ask, Context, Done, Machine, Outcome, step
from stepwell._core.await_unit import new_interaction
from stepwell._core.commit import Commit
from stepwell._core.instance import Claim
from stepwell._core.interaction import Answer, Completion
from stepwell._core.transition import common_of, transition
from stepwell._store import await_units, interactions
from stepwell._store.await_units import Appended
from stepwell._store.interactions import Sent
from stepwell.outcomes import AskEach
from tests.support.contest import Contest, Contestant

LARGEST = 100_000
SOON = timedelta(seconds=30)  # after which an interaction of these tests is late; the clock is the test's

BROKEN = """
with counted as (
  select u.*, q.*
  from stepwell.await_units u
  cross join lateral (
    select count(*) as number, max(item) + 1 as items,
           count(*) filter (where status in ('completed', 'timed_out', 'failed', 'cancelled')) as ended,
           count(*) filter (where status in ('waiting', 'dispatching', 'dispatched')) as out
    from stepwell.interactions where unit_id = u.id
  ) q(number, items, ended, out)
)
select 'unit ' || id || ' counts ' || concat_ws('/', opened, resolved, in_flight) || ' and has '
       || concat_ws('/', number, ended, out) as problem
from counted
where opened <> number or opened <> items or status = 'waiting' and (resolved <> ended or in_flight <> out)
   or status = 'completed' and resolved <> opened
union all
select 'unit ' || id || ' has ' || out || ' out of a window of ' || "window" from counted where out > "window"
union all
select 'unit ' || id || ' is ' || status || ' and has open questions' from counted
where status <> 'waiting' and number > ended
  and not exists (select from stepwell.cleanups k where k.unit_id = counted.id)
union all
select 'instance ' || i.id || ' waits for unit ' || coalesce(i.await_unit_id::text, 'none') || ', which is '
       || coalesce(u.status, 'not there')
from stepwell.instances i left join stepwell.await_units u on u.id = i.await_unit_id
where i.status = 'awaiting_external' and u.status is distinct from 'waiting'
union all
select 'unit ' || u.id || ' is open and nobody''s' from stepwell.await_units u
where u.status = 'waiting' and not exists (
  select from stepwell.instances i where i.id = u.instance_id and u.id in (i.await_unit_id, i.filling_unit_id))
"""


class Asker(Machine, initial="start"):
    """The tests write its outcomes themselves."""

    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        return Ask("manual", {}, then=self.collect)

    @step
    async def collect(self, ctx: Context[Any]) -> Done:
        return Done([reply.value for reply in ctx.replies])


class Asked(Contest):
    """A contest about interactions."""

    async def claimed(self, contestant: Contestant) -> Claim:
        """A claimed instance, about to ask."""
        await self.harness.engine.start(Asker, {})
        [claim] = await self.claim(contestant)
        return claim

    async def one(self, contestant: Contestant, transport: str = "manual", **options: Any) -> tuple[int, str]:
        """An instance that waits for one reply; its id, and that of the interaction."""
        claim = await self.claimed(contestant)
        await self.flush(contestant, self.asks(claim, Ask(transport, {"n": 1}, then="collect", reply=int, **options)))
        [asked] = await self.ids(claim.id)
        return claim.id, asked

    async def many(self, contestant: Contestant, number: int, **options: Any) -> tuple[int, list[str]]:
        """An instance that waits for this number of replies."""
        claim = await self.claimed(contestant)
        outcome = each(**options)
        await self.fill(contestant, claim, outcome, number)
        await self.flush(contestant, self.asks(claim, outcome))
        return claim.id, await self.ids(claim.id)

    async def fill(
        self, contestant: Contestant, claim: Claim, outcome: AskEach, number: int, first: int = 0
    ) -> Appended | None:
        """Append a chunk, as the filler does; None if the claim is lost."""
        common = common_of(outcome, claim.step, self.registry)
        chunk = [new_interaction({"n": n}, common, LARGEST) for n in range(first, first + number)]
        async with contestant.transaction() as session:
            held = await await_units.hold(session, claim)  # type: ignore[arg-type]
            if held is None:
                return None
            return await await_units.append(session, claim, held.unit_id, common, first, chunk)  # type: ignore[arg-type]

    def asks(self, claim: Claim, outcome: Ask | AskEach) -> Commit:
        """The commit of an ask; an Ask.each has inserted its interactions by then."""
        definition = self.registry.find(claim.machine, claim.version)
        assert definition is not None
        mark = definition.state.mark({})
        commit = transition(
            outcome, claim=claim, definition=definition, state={}, mark=mark, max_payload=LARGEST,
            registry=self.registry,
        )  # fmt: skip
        return replace(commit, has_filled=isinstance(outcome, AskEach))

    async def complete(self, contestant: Contestant, interaction: str, reply: Any = 1) -> Completion:
        answer = Answer(reply=reply, interaction=interaction)
        return await self.client(contestant).completing.complete(answer)

    async def expire(self, contestant: Contestant) -> tuple[int, int]:
        """End late interactions; how many there were, and how many of them were locked."""
        late, held, _ = await interactions.expire(contestant)  # type: ignore[arg-type]
        return late, held

    async def take(self, contestant: Contestant, worker_id: int, transport: str = "there") -> list[tuple[str, int]]:
        """Claim interactions to send them; with the number of the try."""
        taken = await interactions.claim(contestant, worker_id, transport, 10)
        return [(out.dispatch.interaction_id, out.dispatch.attempt) for out in taken]

    async def note(self, contestant: Contestant, worker_id: int, taken: list[tuple[str, int]]) -> list[str]:
        """Record that they are sent; returns those that could not be recorded now."""
        left = await interactions.record(contestant, worker_id, [Sent(id_, attempt) for id_, attempt in taken])
        return [sent.id for sent in left]

    async def ids(self, instance_id: int) -> list[str]:
        rows = await self.sql(
            "select id::text from stepwell.interactions where instance_id = $1 order by unit_id, item", instance_id
        )
        return [row["id"] for row in rows]

    async def statuses(self, instance_id: int) -> list[str]:
        rows = await self.sql(
            "select status from stepwell.interactions where instance_id = $1 order by unit_id, item", instance_id
        )
        return [row["status"] for row in rows]

    async def unit(self, instance_id: int) -> tuple[str, int, int, int]:
        """Status of its last unit, how many interactions it has, how many are resolved, how many are open."""
        [row, *_] = await self.sql(
            "select status, opened, resolved, in_flight from stepwell.await_units where instance_id = $1 "
            "order by id desc", instance_id,
        )  # fmt: skip
        return tuple(row)  # type: ignore[return-value]

    async def problems(self) -> list[str]:
        return [row["problem"] for row in await self.sql(BROKEN)]


def each(transport: str = "manual", **options: Any) -> AskEach:
    return Ask.each(transport, (), then="collect", reply=int, **options)


async def problems_in(connection: asyncpg.Connection) -> list[str]:
    """The violated invariants of interactions in this database."""
    return [row["problem"] for row in await connection.fetch(BROKEN)]
