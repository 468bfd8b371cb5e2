"""`walks`: Hypothesis walks a machine with signals, time and crashes, finds a planted bug, and shrinks."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from stepwell import Await, Context, Done, Instance, InvalidInput, Machine, MissingExtra, step
from stepwell.testing import Harness, Walk, walks
from stepwell.testing.random_walk import Crashed, Passed, Signalled
from tests.surfaces.testing_kit.machines import Parking

HOUR = timedelta(hours=1)
QUICK = settings(
    max_examples=8, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


class Account(Machine):
    """Takes and gives until no signal came for an hour. The careless one gives what it does not have."""

    is_careful = True

    @dataclass
    class State:
        balance: int = 0

    @step
    async def start(self, ctx: Context[State]) -> Await:
        return Await("put", "take", then=self.book, timeout=HOUR)

    @step
    async def book(self, ctx: Context[State]) -> Await | Done:
        if not ctx.awaited:
            return Done(ctx.state.balance)
        for signal in ctx.awaited:
            change = signal.payload if signal.name == "put" else -signal.payload
            if not self.is_careful or ctx.state.balance + change >= 0:
                ctx.state.balance += change
        return Await("put", "take", then=self.book, timeout=HOUR, consume=True)


class CarelessAccount(Account):
    is_careful = False


WALKS = walks(signals={"put": st.integers(1, 3), "take": st.integers(1, 3)}, most=5)


def is_never_overdrawn(_: Harness, account: Instance) -> None:
    assert account.state["balance"] >= 0


@QUICK
@given(walk=WALKS)
async def test_the_careful_account_is_never_overdrawn(walk: Walk) -> None:
    async with Harness([Account]) as h:
        await walk.run(h, Account, invariant=is_never_overdrawn)


async def test_the_careless_account_is_found_by_a_short_walk() -> None:
    with pytest.raises(AssertionError) as found:
        find_overdraft()

    notes = "\n".join(found.value.__notes__)
    assert "after signal('take', 1):" in notes
    assert "state: {'balance': -1}" in notes
    assert "walk=Walk([signal('take', 1)])" in notes


def find_overdraft() -> None:
    """As a test would be; run in a thread, as Hypothesis runs no coroutine by itself."""
    import asyncio  # noqa: PLC0415
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    async def run(walk: Walk) -> None:
        async with Harness([CarelessAccount]) as h:
            await walk.run(h, CarelessAccount, invariant=is_never_overdrawn)

    @settings(QUICK, phases=[Phase.generate, Phase.shrink], report_multiple_bugs=False)
    @given(walk=walks(signals={"take": st.integers(1, 3)}, crashes=False, most=2))
    def play(walk: Walk) -> None:
        asyncio.run(run(walk))

    with ThreadPoolExecutor(1) as thread:
        thread.submit(play).result()


async def test_a_walk_signals_advances_the_clock_and_crashes() -> None:
    seen: list[str] = []

    async def look(h: Harness, instance: Instance) -> bool:
        seen.append(instance.status)
        return True

    walk = Walk((Crashed("committer.before_commit"), Signalled("word", 1), Passed(timedelta(days=2)),
                 Signalled("word")))
    async with Harness([Parking]) as h:
        ended = await walk.run(h, Parking, invariant=look, key="p")
        [(fence,)] = await h.sql("select fence from stepwell.instances")

    assert (ended.key, ended.result) == ("p", [1])
    assert seen == ["awaiting_signal", "done", "done", "done"]
    assert fence == 5  # claim and commit of `start`, claim of `end`, again after the crash, and its commit
    assert repr(walk).startswith("Walk([crash('committer.before_commit'), signal('word', 1), advance(2 days, 0:00:00)")


async def test_an_invariant_may_return_false() -> None:
    async with Harness([Parking]) as h:
        with pytest.raises(AssertionError, match="the invariant does not hold"):
            await Walk(()).run(h, Parking, invariant=lambda *_: False)
        with pytest.raises(InvalidInput, match=r"invariant: expected a function of \(h, instance\), got None"):
            await Walk(()).run(h, Parking, invariant=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"signals": {"put": 3}}, InvalidInput, "'put': expected a strategy of its payload"),
        ({"signals": {}, "advance": None, "crashes": False}, InvalidInput, "does nothing"),
        ({"signals": {}, "crashes": ["committer.comitted"]}, ValueError, "did you mean 'committer.committed'"),
    ],
)
def test_an_invalid_walk_is_refused(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        walks(**options)


def test_without_hypothesis_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hypothesis", None)

    with pytest.raises(MissingExtra, match=r"walks\(…\) needs .* pip install 'stepwell\[testing\]'"):
        walks(signals={})
