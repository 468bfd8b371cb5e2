"""The functions that five flows pass, from one end to the other: `python -m tests.quality.flows`.

A flow runs some times on a warm engine and worker; the table has the medians. A jump is a call into another module than
that of the call before; tasks interleave, so it is an upper bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import httpx

from stepwell import Ask, Await, Context, Done, Engine, Machine, Spawn, job, step
from stepwell.pipelines import Pipeline, await_, many_to_one, one_to_many
from stepwell.testing import Harness
from stepwell.transports import Webhook
from stepwell.web import BearerToken, completions
from tests.features.transports.servers import Server
from tests.quality.job_path import Trace

WARM_UP, SAMPLES = 5, 5
CHILDREN = 100
TOKEN = "t" * 40
SECRET = "w" * 40
SETTLED = 0.2  # seconds after which a flow that nobody waits for has ended


class JumpTrace(Trace):
    """Counts changes of module, too."""

    def __init__(self) -> None:
        super().__init__()
        self.jumps = 0
        self._last = ""

    def _enter(self, function: tuple[str, str]) -> None:
        super()._enter(function)
        self.jumps += function[0] != self._last
        self._last = function[0]


@job
async def nothing() -> None:
    pass


class Waits(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Await:
        return Await("go", then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done()


class Parent(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Spawn:
        return Spawn([nothing.child()] * CHILDREN, then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done()


class Asks(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Ask:
        return Ask("hook", {"amount": 1}, reply=dict, then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done()


@dataclass
class Number:
    number: int


@one_to_many
def three(given: Number) -> list[Number]:
    return [Number(n) for n in range(3)]


@many_to_one
async def total(numbers: AsyncIterator[Number]) -> int:
    return sum([n.number async for n in numbers])


SUM = Pipeline("sum", [three, await_("priced", over="manual", input=Number, output=Number), total])

Act = Callable[[], Awaitable[object]]


class Flows:
    """A warm engine with a worker, another engine, and the completions over HTTP."""

    def __init__(self, h: Harness, elsewhere: Engine, client: httpx.AsyncClient) -> None:
        self.h = h
        self.engine = h.engine
        self.elsewhere = elsewhere
        self.client = client

    async def job(self) -> Act:
        return lambda: self._result(nothing)

    async def unwatched_job(self) -> Act:
        async def act() -> None:
            await self.engine.start(nothing)
            await asyncio.sleep(SETTLED)

        return act

    async def park(self) -> Act:
        async def act() -> None:
            await (await self.engine.start(Waits)).wait(until="settled", timeout=10)

        return act

    async def signal(self) -> Act:
        handle = await self.engine.start(Waits)
        await handle.wait(until="settled", timeout=10)

        async def act() -> None:
            await self.elsewhere.signal(handle.id, "go")
            await handle.result(timeout=10)

        return act

    async def spawn(self) -> Act:
        return lambda: self._result(Parent)

    async def ask(self) -> Act:
        async def act() -> None:
            await self.engine.start(Asks)
            await asyncio.sleep(SETTLED)

        return act

    async def complete(self) -> Act:
        handle = await self.engine.start(Asks)
        await handle.wait(until="settled", timeout=10)
        await asyncio.sleep(SETTLED)
        [asked] = [one for one in (await self.engine.interactions.pending(limit=500)).items if
                   one.instance_id == handle.id]

        async def act() -> None:
            answer = await self.client.post(
                "/interactions/complete", json={"interactionId": asked.id, "responsePayload": {"ok": 1}},
                headers={"authorization": f"Bearer {TOKEN}"},
            )  # fmt: skip
            assert answer.status_code < 300, answer.text
            await handle.result(timeout=10)

        return act

    async def pipeline(self) -> Act:
        async def act() -> None:
            handle = await self.engine.start(SUM, Number(1))
            await handle.wait(until="settled", timeout=10)
            page = await self.engine.interactions.pending(limit=500)
            for one in [one for one in page.items if one.instance_id == handle.id]:
                await self.engine.complete(interaction=one.id, reply=one.request)
            await handle.result(timeout=10)

        return act

    async def _result(self, machine: Any) -> object:
        return await (await self.engine.start(machine)).result(timeout=10)


@asynccontextmanager
async def made() -> AsyncIterator[Flows]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(Server())
        hook = Webhook("hook", url=server.url, secret=SECRET, allow_private=True)
        machines = [nothing, Waits, Parent, Asks, SUM]
        h = await stack.enter_async_context(Harness(machines, transports=[hook]))
        app = completions(h.engine, tokens=[BearerToken(TOKEN, scopes={"complete"}, actor="ana")])
        elsewhere = await stack.enter_async_context(h.another_engine())
        transport = httpx.ASGITransport(app)
        client = await stack.enter_async_context(httpx.AsyncClient(transport=transport, base_url="http://flows"))
        await stack.enter_async_context(h.engine.worker())
        yield Flows(h, elsewhere, client)


FLOWS = {
    "(a) start to result()": Flows.job,
    "(a') start to done": Flows.unwatched_job,
    "(b) start to Await": Flows.park,
    "(b) signal to Done": Flows.signal,
    f"(c) Spawn {CHILDREN}, join": Flows.spawn,
    "(d) Ask to POST noted": Flows.ask,
    "(d) HTTP completion to Done": Flows.complete,
    "(e) pipeline, 3 items": Flows.pipeline,
}


async def traced(flows: Flows, flow: Callable[[Flows], Awaitable[Act]]) -> tuple[int, int, int]:
    """Functions, modules and jumps of one flow."""
    traces = []
    for n in range(WARM_UP + SAMPLES):
        act = await flow(flows)
        with JumpTrace() as trace:
            await act()
        if n >= WARM_UP:
            traces.append(trace)
    return (
        round(median(len(trace.entered) for trace in traces)),
        round(median(len(trace.modules) for trace in traces)),
        round(median(trace.jumps for trace in traces)),
    )


async def main() -> None:
    print(f"{'flow':<30}{'functions':>10}{'modules':>10}{'jumps':>10}")
    async with made() as flows:
        for name, flow in FLOWS.items():
            print(f"{name:<30}{''.join(f'{number:>10}' for number in await traced(flows, flow))}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
