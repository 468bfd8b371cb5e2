"""One outcome that the server refuses for reasons of its own, among others that it takes."""

from __future__ import annotations

import asyncio
from typing import Any

from stepwell import Context, Done, Machine, Stop, step
from stepwell._worker.committing.isolation import MOST_MISFITS
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

GOOD = 40
REFUSE = [
    "create sequence public.refusals",
    """create function public.refuse() returns trigger language plpgsql as $$
       begin
         perform nextval('public.refusals');
         raise exception 'function audit(integer) does not exist' using errcode = 'undefined_function';
       end $$""",
    """create trigger refuse before update on stepwell.instances for each row
       when (new.machine = 'Bad' and new.status = 'done') execute function public.refuse()""",
]


class Good(Machine):
    """Is done when it may be."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        ctx.resources["runs"].append(ctx.id)
        await ctx.resources["gate"].wait()
        return Done("done")


class Bad(Good):
    """The server does not let it be done."""

    async def handle(self, error: Exception, ctx: Context[Any]) -> Stop:
        ctx.resources["handled"].append(repr(error))
        return Stop("refused")


async def test_an_outcome_refused_by_the_server_goes_to_handle_and_delays_no_other(
    make_harness: MakeHarness,
) -> None:
    signs: dict[str, Any] = {"runs": [], "gate": asyncio.Event(), "handled": []}
    h = await make_harness([Good, Bad], resources=signs)
    for statement in REFUSE:
        await h.sql(statement)

    async with h.engine.worker({"default": 2 * GOOD}):
        started = await h.engine.start_many([(Good, {})] * (GOOD // 2) + [(Bad, {})] + [(Good, {})] * (GOOD // 2))
        bad = started.pop(GOOD // 2)
        await eventually(lambda: len(signs["runs"]) == GOOD + 1)
        signs["gate"].set()
        results = [await handle.result(timeout=30) for handle in started]
        while not signs["handled"]:
            more = await h.engine.start_many([(Good, {})] * 5)
            results += [await handle.result(timeout=30) for handle in more]
        ended = await bad.wait(timeout=30)

    [row] = await h.sql("select last_value as refusals from public.refusals")
    assert set(results) == {"done"}
    assert (len(signs["handled"]), ended.status.value, signs["runs"].count(bad.id)) == (1, "failed", 1)
    assert "RefusedByDatabase" in signs["handled"][0]
    assert row["refusals"] >= MOST_MISFITS


async def test_an_outcome_refused_without_others_to_compare_is_kept(make_harness: MakeHarness) -> None:
    """A server that refuses the only outcome there is may refuse all: the step is not undone for that."""
    signs: dict[str, Any] = {"runs": [], "gate": asyncio.Event(), "handled": []}
    signs["gate"].set()
    h = await make_harness([Good, Bad], resources=signs)
    for statement in REFUSE:
        await h.sql(statement)

    async with h.engine.worker():
        bad = await h.engine.start(Bad)
        await eventually(lambda: refused(h, MOST_MISFITS + 2))
        handled = list(signs["handled"])
        await h.sql("drop trigger refuse on stepwell.instances")
        result = await bad.result(timeout=30)

    assert (handled, signs["handled"], result, signs["runs"]) == ([], [], "done", [bad.id])


async def refused(h: Any, times: int) -> bool:
    [row] = await h.sql("select last_value as refusals from public.refusals")
    return bool(row["refusals"] >= times)
