"""The clients start, signal and wait until each conversation has ended, and repeat every unconfirmed call.

Keys are `forever` and signals have dedup keys, so a repeated call has one effect. A confirmed call is never sent again,
unless a failover may have lost it: what the engine loses stays lost, and is found.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from stepwell import Engine, NoTarget, NotFound
from stepwell.testing.stops.slowness import Computer
from tests.chaos import limits
from tests.chaos.conversations import Conversation, make
from tests.chaos.findings import Findings

PAUSE = 0.1
WAIT = 5.0
KEPT = """
select key, finished_at is not null as has_ended from stepwell.instances where key = any ($1)
union all
select key, true from public.pruned where key = any ($1)
"""


class Workload:
    """Some users, each with one conversation at a time."""

    def __init__(self, engine: Engine, machine: Computer, findings: Findings, seed: int, users: int) -> None:
        self._engine = engine
        self._machine = machine
        self._findings = findings
        self._dice = random.Random(f"{seed} workload")  # noqa: S311 - not a secret
        self._users = users
        self._tasks: list[asyncio.Task[None]] = []
        self._again: list[Conversation] = []
        self._is_calm = False
        self.failovers = 0
        self.conversations: list[Conversation] = []
        self.repeated: Counter[str] = Counter()  # calls that failed and were repeated, by error
        self.slowest: defaultdict[str, float] = defaultdict(float)  # seconds, by call

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._use()) for _ in range(self._users)]

    @property
    def ended(self) -> int:
        return sum(c.ended_at is not None for c in self.conversations)

    async def calm(self, patience: float) -> None:
        """Start nothing new; wait until all conversations have ended, but not for longer than that."""
        self._is_calm = True
        _, pending = await asyncio.wait(self._tasks, timeout=patience)
        for task in pending:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _use(self) -> None:
        while True:
            if self._again:
                conversation = self._again.pop()
            elif self._is_calm:
                return
            else:
                conversation = make(len(self.conversations), self._dice)
                self.conversations.append(conversation)
            await self._drive(conversation)

    async def _drive(self, conversation: Conversation) -> None:
        """Repeat the calls of a conversation until it has ended."""
        while conversation.ended_at is None:
            failovers = self.failovers
            try:
                await self._say(conversation)
                with self._timed("wait", WAIT):
                    found = await self._engine.wait(conversation.key, timeout=WAIT)
                if found.status.is_terminal and failovers == self.failovers:
                    conversation.ended_at = time.monotonic()
                    conversation.told = found.status.value, found.result
            except (NotFound, NoTarget):
                await self._look_for(conversation, failovers)
            except Exception as error:  # noqa: BLE001 - a client repeats whatever failed; the report counts it
                self.repeated[type(error).__name__] += 1
                await asyncio.sleep(PAUSE)

    async def _say(self, c: Conversation) -> None:
        if c.started_at is None:
            before = self.failovers
            with self._timed("start", limits.CALL):
                await self._engine.start(
                    c.machine, c.state, key=c.key, key_scope="forever", if_exists="return", **c.options
                )
            c.started_at = time.monotonic() if before == self.failovers else None
        for index, payload in enumerate(c.signals):
            if c.signalled_at[index] is None:
                before = self.failovers
                with self._timed("signal", limits.CALL):
                    await self._engine.signal(c.key, "item", payload, dedup_key=f"{c.key}:{index}")
                c.signalled_at[index] = time.monotonic() if before == self.failovers else None

    @contextlib.contextmanager
    def _timed(self, call: str, at_most: float) -> Iterator[None]:
        """A call returns or raises within its time limit."""
        before = time.monotonic()
        try:
            yield
        finally:
            seconds = time.monotonic() - before
            self.slowest[call] = max(self.slowest[call], seconds)
            if seconds > at_most:
                may = limits.answered(at_most).on(self._machine.slowness(before))
                if seconds > may:
                    self._findings.slow.append(f"a call of {call} took {seconds:.1f} s, {may:.1f} s may")

    async def _look_for(self, c: Conversation, failovers: int) -> None:
        """No such instance: it ended before its last signal was repeated, or it is lost."""
        try:
            with self._timed("get", limits.CALL):
                found = await self._engine.get(c.key)
        except NotFound:
            if c.started_at is not None and failovers == self.failovers and c.is_brief:
                c.ended_at = time.monotonic()  # the checks see whether it was deleted as it should
            elif c.started_at is not None and failovers == self.failovers:
                self._findings.lost.append(f"{c.key} was started, and is gone")
                c.started_at = None
        except Exception as error:  # noqa: BLE001 - as above
            self.repeated[type(error).__name__] += 1
        else:
            if found.status.is_terminal and failovers == self.failovers:
                c.signalled_at = [at or time.monotonic() for at in c.signalled_at]
        await asyncio.sleep(PAUSE)

    async def lose_since(self, moment: float, primary: Any) -> int:
        """A failover kept what was confirmed up to that moment: check it, and repeat what was confirmed later.

        Returns the number of repeated conversations.
        """
        self.failovers += 1
        sure = [c for c in self.conversations if c.started_at is not None and c.started_at <= moment]
        rows = await primary.query(KEPT, [c.key for c in sure])
        ended = {row["key"]: row["has_ended"] for row in rows}
        for c in sure:
            if c.key not in ended:
                self._findings.lost.append(f"{c.key} was started and replicated, and is gone after the failover")
            elif c.ended_at is not None and c.ended_at <= moment and not ended[c.key]:
                self._findings.lost.append(f"{c.key} had ended and was replicated, and is open after the failover")
        again = 0
        for c in self.conversations:
            was_over = c.ended_at is not None
            if c.forget_since(moment):
                again += 1
                if was_over:
                    self._again.append(c)
        return again
