"""Random walks through a machine, for Hypothesis: signals, time and crashes, and an invariant that holds after each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from stepwell._core.instance import Instance
from stepwell.errors import InvalidInput, MissingExtra, NoTarget
from stepwell.testing.assertions import describe
from stepwell.testing.faults import Fault
from stepwell.testing.harness import Harness

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

Invariant: TypeAlias = Callable[[Harness, Instance], Any]
"""Given the harness and the instance as it is; raises, or returns False, if it is violated. May be async."""

CRASHES = ("executor.begun", "committer.before_commit", "committer.committed")


@dataclass(frozen=True, slots=True)
class Signalled:
    """Send a signal; the instance may have ended."""

    name: str
    payload: Any = None

    async def do(self, h: Harness, instance_id: int) -> None:
        try:
            await h.engine.signal(instance_id, self.name, self.payload)
        except NoTarget:
            return

    def __repr__(self) -> str:
        return f"signal({self.name!r}, {self.payload!r})"


@dataclass(frozen=True, slots=True)
class Passed:
    """Time passes."""

    by: timedelta

    async def do(self, h: Harness, _: int) -> None:
        await h.advance(self.by)

    def __repr__(self) -> str:
        return f"advance({self.by})"


@dataclass(frozen=True, slots=True)
class Crashed:
    """The worker dies at a point, if the next drain reaches it."""

    point: str

    async def do(self, h: Harness, _: int) -> None:
        h._faults.append(Fault(self.point, is_sure=False))  # noqa: SLF001 - both belong to the kit

    def __repr__(self) -> str:
        return f"crash({self.point!r})"


Act: TypeAlias = Signalled | Passed | Crashed


@dataclass(frozen=True, slots=True)
class Walk:
    """Some acts upon one instance."""

    acts: tuple[Act, ...]

    async def run(
        self, h: Harness, machine: Any, state: Any = None, *, invariant: Invariant, **options: Any
    ) -> Instance:
        """Start an instance and do the acts, each followed by a drain and a check of the invariant.

        A crash strikes in the drain after the act that follows it. Options are those of `engine.start`.
        """
        if not callable(invariant):
            raise InvalidInput("invariant", f"expected a function of (h, instance), got {invariant!r}")
        handle = await h.engine.start(machine, state, **options)
        found = await self._look(h, handle.id, invariant, 0)
        for number, act in enumerate(self.acts, 1):
            await act.do(h, handle.id)
            if not isinstance(act, Crashed) or number == len(self.acts):
                found = await self._look(h, handle.id, invariant, number)
        return found

    async def _look(self, h: Harness, instance_id: int, invariant: Invariant, number: int) -> Instance:
        await h.drain()
        found = await h.engine.get(instance_id)
        try:
            await _check(invariant, h, found)
        except AssertionError as error:
            done = ", ".join(map(repr, self.acts[:number])) or "only the start"
            error.add_note(f"after {done}:\n{found.machine} #{found.id}\n{await describe(h.engine, found)}")
            raise
        return found

    def __repr__(self) -> str:
        return f"Walk([{', '.join(map(repr, self.acts))}])"


async def _check(invariant: Invariant, h: Harness, found: Instance) -> None:
    holds = invariant(h, found)
    if inspect.isawaitable(holds):
        holds = await holds
    if holds is False:
        raise AssertionError("the invariant does not hold")


def walks(
    *,
    signals: Mapping[str, SearchStrategy[Any]],
    advance: timedelta | Sequence[timedelta] | None = timedelta(hours=1),
    crashes: bool | Sequence[str] = True,
    most: int = 10,
) -> SearchStrategy[Walk]:
    """A Hypothesis strategy of walks, to `await walk.run(h, Checkout, state, invariant=…)`; they shrink.

    `signals` has a strategy of payloads by name; `advance` the steps in which time passes (None: it does not);
    `crashes` the points where a worker may die (False: none).
    """
    try:
        from hypothesis import strategies as st  # noqa: PLC0415 - optional, and slow to import
    except ImportError:
        raise MissingExtra("testing", "walks(…)") from None
    kinds: list[SearchStrategy[Act]] = [_signal(name, payload) for name, payload in signals.items()]
    if advance is not None:
        steps = [advance] if isinstance(advance, timedelta) else list(advance)
        kinds.append(st.builds(Passed, st.sampled_from(steps)))
    if crashes:
        kinds.append(st.builds(Crashed, st.sampled_from(CRASHES if crashes is True else _points(crashes))))
    if not kinds:
        raise InvalidInput("signals", "a walk without signals, time and crashes does nothing")
    return st.lists(st.one_of(kinds), max_size=most).map(lambda acts: Walk(tuple(acts)))


def _signal(name: str, payload: SearchStrategy[Any]) -> SearchStrategy[Act]:
    from hypothesis import strategies as st  # noqa: PLC0415 - optional, and slow to import

    if not isinstance(payload, st.SearchStrategy):
        raise InvalidInput("signals", f"{name!r}: expected a strategy of its payload (st.none() for none), "
                           f"got {payload!r}")
    return st.builds(Signalled, st.just(name), payload)


def _points(points: Sequence[str]) -> list[str]:
    return [Fault(point).point for point in points]  # refuses unknown points
