"""The functions that a no-op job passes, from its start to the commit of its end."""

from __future__ import annotations

import asyncio
import sys
from functools import cache
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

from stepwell import job
from stepwell.testing import Harness
from tests.quality.figure import SOURCE, Figure, relative

MOST_FUNCTIONS, MOST_MODULES = 120, 28
BACKGROUND = {  # modules of services that run beside any job; their ticks are no part of a job's path
    "heartbeat", "timers", "reaper", "pruner", "reconciler", "sharer", "fair_migration", "watchdog", "vacuum_watch",
}  # fmt: skip
WARM_UP, SAMPLES = 30, 9
SETTLED = 0.15  # seconds after which a job without a waiting client is done


class Trace:
    """The library's functions that the event loop's thread enters, in the order of their first call."""

    def __init__(self) -> None:
        self.entered: dict[tuple[str, str], None] = {}

    def __enter__(self) -> Trace:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and is_ours(code.co_filename) and "<" not in code.co_name and not in_background(frame):
            self._enter((relative(Path(code.co_filename)), code.co_qualname))

    def _enter(self, function: tuple[str, str]) -> None:
        self.entered[function] = None

    @property
    def modules(self) -> set[str]:
        return {module for module, _ in self.entered}


@cache
def is_ours(filename: str) -> bool:
    path = Path(filename)
    return path.is_relative_to(SOURCE) and "testing" not in path.relative_to(SOURCE).parts[:1]


@cache
def is_background(filename: str) -> bool:
    return is_ours(filename) and Path(filename).stem in BACKGROUND


def in_background(frame: FrameType | None) -> bool:
    """Whether a tick of such a service is running, or a callback that it has scheduled."""
    outermost = None
    while frame is not None:
        code = frame.f_code
        if is_ours(code.co_filename):
            outermost = code
            if code.co_name == "tick" and is_background(code.co_filename):
                return True
        frame = frame.f_back
    return outermost is not None and is_background(outermost.co_filename)


async def trace_jobs(*, waits: bool) -> list[Trace]:
    @job
    async def nothing() -> None:
        pass

    traces = []
    async with Harness([nothing]) as h, h.engine.worker():
        for n in range(WARM_UP + SAMPLES):
            with Trace() as trace:
                handle = await h.engine.start(nothing)
                await (handle.result() if waits else asyncio.sleep(SETTLED if n >= WARM_UP else 0.01))
            if n >= WARM_UP:
                assert (await handle.get()).status == "done"
                traces.append(trace)
    return traces


def job_path() -> Figure:
    traces = asyncio.run(trace_jobs(waits=False))
    waited = asyncio.run(trace_jobs(waits=True))
    functions, parts = middle(traces)
    assert functions, "the traced job ran in another checkout of the library"
    one = next(trace for trace in traces if len(trace.entered) == functions)
    return Figure(
        "functions / modules of a job, start to done", f"{functions} / {parts}",
        f"<= {MOST_FUNCTIONS} / {MOST_MODULES}",
        functions <= MOST_FUNCTIONS and parts <= MOST_MODULES,
        [f"{module}: {function}" for module, function in one.entered],
        ("{} / {} with a client that waits for the result".format(*middle(waited)),),
    )  # fmt: skip


def middle(traces: list[Trace]) -> tuple[int, int]:
    return round(median(len(one.entered) for one in traces)), round(median(len(one.modules) for one in traces))
