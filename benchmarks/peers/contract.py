"""The interface of a system to the harness, and what its process prints.

A file in `systems` subclasses `System` and ends with `timing.main(Its)`. The harness runs it as
`python -m benchmarks.peers.systems.<name> URL WORKLOAD [--quick] [knob=value …]` with that system's Python, on an
empty database, and reads JSON lines from its standard output (`say`):

{"settings": "…", "versions": {…}}       first, always
{"values": {"rate": 1234.5}, "note": …}  what was measured; the note is a footnote, if there is one
{"missing": "why"}                       instead of it: the system lacks the feature
{"ready": true}                          of `idle`: look now; it ends with its standard input

For two processes it runs itself once more, with `--second`: that one only works, and says how many steps have begun.

All clocks are in `timing`, the same for every system; a system only starts, works and reports when a step begins. Both
modules run in every environment: they need nothing but the standard library and the system's own driver.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from time import perf_counter
from typing import Any, ClassVar

from benchmarks.peers.driver import Asker

LOOK_EVERY = 0.002  # seconds between two reads of how many steps have begun
ASK_EVERY = 0.005  # seconds between two looks into the tables, once all have begun
LARGE = 1_000  # characters of payload in everything of a workload of 1 kB
CHAINED = dict.fromkeys(  # the footnotes of a job queue
    ("three_steps", "three_steps_1kb", "ten_steps"),
    "a chain of jobs: each enqueues the next, and its own end is written later",
)
IDLE = ("idle", "latency", "timer")  # how the names of the workloads end that leave a system idle most of the time


class Missing(Exception):
    """The system lacks the feature; says why."""


class System:
    """One system under measurement, client and one worker in this process."""

    packages: ClassVar[tuple[str, ...]]  # the packages in the report of versions
    settings: ClassVar[str]  # for the reader; {knob} is its value
    knobs: ClassVar[Mapping[str, float]] = {}  # settings that the command line can change
    default_poll: ClassVar[float | None] = None  # seconds, if it only polls; its knob "poll" is for the rates
    scale: ClassVar[float] = 1.0  # of all sizes: a slow system gets less to do, so that a repetition takes seconds
    notes: ClassVar[Mapping[str, str]] = {}  # footnotes, by workload
    left: ClassVar[str]  # SQL: how many rows are not finished yet

    def __init__(self, url: str, workload: str, knobs: Mapping[str, float]) -> None:
        self.url = url
        self.workload = workload
        self.knob = {**self.knobs, **knobs}
        self.begun: list[float] = []  # when each step began; a list, because some begin in threads
        self.times: dict[int, float] = {}  # the same, of numbered ones
        self.due: dict[int, float] = {}  # when a delayed one was due
        self.text = "x" * LARGE if workload.endswith("_1kb") else ""  # payload in the state, the job, the results
        self.asker = Asker(url)

    def note(self, number: int = -1) -> None:
        """Every measured step calls it when it begins."""
        now = perf_counter()
        self.begun.append(now)
        self.times[number] = now

    def delay(self, number: int, seconds: float) -> None:
        """Called at the moment the delay is asked for; code that is run again after the delay may call it again."""
        self.due.setdefault(number, perf_counter() + seconds)

    @property
    def is_idle(self) -> bool:
        """Whether the workload leaves it idle most of the time: then one worker is enough, if it can have several."""
        return self.workload.endswith(IDLE)

    # What a file in `systems` implements.

    async def install(self) -> None:
        """Create the schema in the empty database."""
        raise NotImplementedError

    async def open(self) -> None:
        """Prepare to start things; a second process does so too."""
        raise NotImplementedError

    async def close(self) -> None:
        """End what `open` began."""

    def working(self) -> AbstractAsyncContextManager[Any]:
        """One worker in this process, while the block runs."""
        raise NotImplementedError

    async def start(self, number: int) -> None:
        """Start something of one step, durably; its step notes the number."""
        raise NotImplementedError

    async def start_many(self, number: int) -> None:
        """Start `number` of one step, in the fastest way there is."""
        raise NotImplementedError

    async def start_later(self, number: int, seconds: float) -> None:
        """Start something with a step that begins after a durable delay and notes the number."""
        raise NotImplementedError

    async def start_chains(self, number: int, steps: int) -> None:
        """Start `number` with this many steps each, each durable before the next begins."""
        raise NotImplementedError

    async def start_families(self, parents: int, children: int) -> None:
        """Start parents that start children and end after them. Only the children note."""
        raise Missing("no join of children")

    async def park(self, number: int) -> None:
        """Start `number` that wait for a signal, and return when all wait. What they do after it notes."""
        raise Missing("no signals to something that waits")

    async def wake(self) -> None:
        """Signal all that wait."""
        raise NotImplementedError

    async def signal(self, number: int) -> None:
        """Signal one of those that were parked, counted from zero."""
        raise NotImplementedError

    async def ended(self, number: int) -> None:
        """Wait as a client does, until it sees that this one has ended."""
        raise NotImplementedError

    # Common to all systems.

    async def settle(self) -> None:
        """Let the server write what the preparation left, so that the measured part does not pay for it."""
        await self.asker.ask("vacuum analyze")
        await self.asker.ask("checkpoint")

    async def finish(self, steps: int) -> None:
        """Wait until this many steps have begun, and everything is finished in the tables."""
        while len(self.begun) < steps:  # noqa: ASYNC110 - steps may begin in threads: no event
            await asyncio.sleep(LOOK_EVERY)
        await self.until_none(self.left)

    async def until_none(self, sql: str) -> None:
        """Wait until a count is zero."""
        while await self.asker.ask(sql):  # noqa: ASYNC110 - a table has no event
            await asyncio.sleep(ASK_EVERY)


def say(**facts: Any) -> None:
    """A line of the answer."""
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()
