"""What the scenarios share: how a play is made, replies, and the checks at its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stepwell.errors import CompletionRefused
from stepwell.testing import Harness
from stepwell.testing.crashes.explore import Scenario
from stepwell.testing.stops.child_process import Reference
from stepwell.testing.stops.explore import TIMES
from stepwell.testing.stops.processes import Processes
from stepwell.testing.stops.runs import Play
from tests.crash.stops.machines import LIMITS, TOKEN_KEYS

OPEN = """
select id::text, instance_id, item from stepwell.interactions
where instance_id = any ($1) and status in ('waiting', 'dispatching', 'dispatched') order by unit_id, item"""


@dataclass(frozen=True)
class Named:
    """A play, and the transactions it is for."""

    name: str
    play: Play
    of: tuple[str, ...]


def play(
    name: str, scenario: Scenario, machines: Sequence[Any], *, of: Sequence[str], look: Scenario | None = None,
    prepare: Callable[[Harness, Processes], Awaitable[None]] | None = None, act: Reference | None = None,
    **settings: Any,
) -> Named:  # fmt: skip
    options = {**TIMES, "limits": LIMITS, "token_keys": TOKEN_KEYS, **settings}
    return Named(name, Play(scenario, list(machines), options, look=look, prepare=prepare, act=act), tuple(of))


async def open_questions(h: Harness, instances: Sequence[int]) -> list[dict[str, Any]]:
    return [dict(row) for row in await h.sql(OPEN, list(instances))]


async def answer(h: Harness, instances: Sequence[int], reply: Callable[[dict[str, Any]], Any]) -> None:
    """Complete what these instances ask until this is cancelled; None is no reply."""
    while True:
        for question in await open_questions(h, instances):
            replied = reply(question)
            if replied is None:
                continue
            try:
                await h.engine.complete(interaction=question["id"], reply=replied)
            except CompletionRefused:
                continue  # it has ended meanwhile
        await asyncio.sleep(0.02)


async def booked(h: Harness) -> Any:
    """What transactional steps have written: each row once."""
    rows = await h.sql(
        "select i.machine, l.step, count(*) from public.ledger l join stepwell.instances i on i.id = l.instance "
        "group by 1, 2 order by 1, 2"
    )
    twice = await h.sql("select instance, step from public.ledger group by 1, 2 having count(*) > 1")
    return {"written": [tuple(row) for row in rows], "written twice": [tuple(row) for row in twice]}

