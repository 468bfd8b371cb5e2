"""A worker that asks, or a client that completes, in a process that is to be killed: `python -m … URL [options]`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from typing import Any

import asyncpg

from stepwell import Ask, Context, Done, Engine, Machine, Outcome, Undeliverable, step
from stepwell._process import probes
from stepwell._worker.running import ask_each
from stepwell.testing.probes import check_point
from stepwell.transports import Admit, Answer, Dispatch, Transport
from tests.features.interactions.looks import SECRET
from tests.features.interactions.machines import Batch, Expense
from tests.support.worker_process import read_settings

CREATE_SENDINGS = (
    "create table public.sendings (number bigint generated always as identity, question uuid, attempt int, pid int)"
)
CREATE_BOOKINGS = "create table public.bookings (instance bigint)"
CHUNK = 3  # items of one transaction, in these processes
KEYS = {"k": SECRET}


class Booking(Machine):
    """Asks in the transaction in which it writes."""

    @step(transactional=True)
    async def start(self, ctx: Context[dict[str, Any]]) -> Outcome:
        await ctx.connection.execute("insert into public.bookings (instance) values ($1)", ctx.id)
        return Ask(ctx.state["transport"], {"number": 0}, reply=int, then=self.booked)

    @step
    async def booked(self, ctx: Context[dict[str, Any]]) -> Outcome:
        return Done(ctx.reply.value)


MACHINES = [Expense, Batch, Booking]


class Noting(Transport):
    """Sends into a table, committed at once, so that it survives its worker."""

    def __init__(self, url: str, name: str = "there") -> None:
        self.name = name
        self._url = url
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        self._connection = await asyncpg.connect(self._url)

    async def close(self) -> None:
        await self._connection.close()

    async def send(self, dispatch: Dispatch, /) -> Mapping[str, Any] | None:
        async with self._turn:
            await self._connection.execute(
                "insert into public.sendings (question, attempt, pid) values ($1, $2, $3)",
                dispatch.interaction_id, dispatch.attempt, os.getpid(),
            )  # fmt: skip
        return None


class Answering(Noting):
    """Everything that was sent is completed."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(url, name)
        self._sent: asyncio.Queue[Dispatch] = asyncio.Queue()

    async def send(self, dispatch: Dispatch, /) -> Mapping[str, Any] | None:
        await super().send(dispatch)
        self._sent.put_nowait(dispatch)
        return None

    async def receive(self, admit: Admit, /) -> None:
        while True:
            sent = await self._sent.get()
            await admit(Answer(reply=reply_to(sent.request), interaction=sent.interaction_id, token=sent.token))


class Missing(Noting):
    """Nothing can be sent."""

    async def send(self, dispatch: Dispatch, /) -> Mapping[str, Any] | None:
        await super().send(dispatch)
        raise Undeliverable("nobody there")


WORLDS = {"silent": Noting, "answers": Answering, "is missing": Missing}


def reply_to(request: Any) -> Any:
    """The reply of the external system: yes to an amount, else a number."""
    return {"approved": True} if "amount" in request else 100 + request["number"]


def die_at(point: str, nth: int) -> None:
    """Kill this process when the point is reached for the nth time; checks that found nothing do not count."""
    check_point(point)
    left = nth

    def die(facts: dict[str, Any]) -> None:
        nonlocal left
        left -= bool(facts.get("ids", True))
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    probes.hooks[point] = die


async def main(given: argparse.Namespace) -> None:
    transport = WORLDS[given.world](given.url, given.transport)
    engine = Engine(given.url, machines=MACHINES, transports=[transport], token_keys=KEYS, **given.settings)
    async with engine:
        if given.answer is not None:
            question = await engine.interactions.get(given.answer)
            token = await engine.interactions.token(question.id) if question.requires_token else None
            await engine.complete(interaction=question.id, reply=reply_to(question.request), token=token)
            return
        async with engine.worker({given.queue: 50}) as worker:
            sys.stdout.write(f"ready {worker.id}\n")
            sys.stdout.flush()
            await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--settings", type=read_settings, default={})
    parser.add_argument("--crash", metavar="POINT")
    parser.add_argument("--nth", type=int, default=1)
    parser.add_argument("--queue", default="default")
    parser.add_argument("--transport", default="there")
    parser.add_argument("--world", choices=WORLDS, default="silent")
    parser.add_argument("--answer", metavar="QUESTION")
    parsed = parser.parse_args()
    ask_each.CHUNK = CHUNK
    if parsed.crash is not None:
        die_at(parsed.crash, parsed.nth)
    asyncio.run(main(parsed))
