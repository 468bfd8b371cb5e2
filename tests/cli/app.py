"""An app for the command line's tests, which run it in processes of their own."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from stepwell import Context, Done, Engine, Machine, job, step
from tests.support.waiting import eventually


class Gate(Machine):
    """Says that it has begun, and waits to be let go."""

    @dataclass
    class State:
        folder: str

    @step
    async def start(self, ctx: Context[State]) -> Done:
        logging.getLogger("gate").info("waiting")
        (Path(ctx.state.folder) / "begun").touch()
        await eventually((Path(ctx.state.folder) / "released").exists)
        return Done({"released": True})


class Stuck(Machine):
    """Says that it has begun, and reads from a pipe that nobody writes to."""

    @dataclass
    class State:
        folder: str

    @step
    def start(self, ctx: Context[State]) -> Done:
        (Path(ctx.state.folder) / "begun").touch()
        return Done((Path(ctx.state.folder) / "pipe").read_text())


@job
async def greet(name: str = "world") -> dict[str, str]:
    return {"hello": name}


@job(max_attempts=1)
async def spill() -> None:
    raise ValueError("no tea")


engine = Engine(machines=[Gate, Stuck, greet, spill])
