"""Any events in any order, with workers that die: nothing is lost, nothing is stuck, nothing happens twice.

Short by default. `make soak` continues for STEPWELL_SOAK_SECONDS, with a new seed each time, from STEPWELL_SOAK_SEED
on.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from stepwell import Duplicate, NoTarget
from stepwell.errors import InvalidInput
from stepwell.outcomes import Entry
from tests.soak import checks
from tests.soak.environment import Environment
from tests.soak.machines import STEPS, Fan, Flaky, Pack, Section
from tests.support.shared_database import shared_database

NODES = 3
PUSHES = 50
NAMES = ("item", "item", "item", "close")

any_one = st.integers(0, 999)  # an index into whatever there is by then: what that is hangs on the workers' pace
few = st.integers(0, 3)

keys = st.none() | few


def keyed(word: str, key: int | None) -> dict[str, str]:
    return {} if key is None else {"key": f"{word} {key}"}


entries = st.one_of(
    st.builds(lambda key: Pack.child({}, **keyed("pack", key)), keys),
    st.builds(
        lambda fails, stops, delay: Flaky.child({"fails": fails, "stops": stops}, delay=timedelta(seconds=delay)),
        few, st.booleans(), few,
    ),
    st.builds(lambda number: Section.child({"section": f"s{number}"}, concurrency_key=f"s{number}"), few),
    st.builds(
        lambda leaves, key: Fan.child({"leaves": leaves}, **keyed("fan", key)),
        st.lists(st.integers(0, 15), max_size=5), keys,
    ),
)  # fmt: skip

FAMILY = (
    "with recursive t(id) as (select $1::bigint union all "
    "select c.id from t join stepwell.instances c on c.parent_id = t.id) select id from t"
)

WORKERS = st.integers(0, NODES - 1)
OPERATIONS = ("cancel", "cancel alone", "retry", "restart")
PLUGS = ("kill", "kill and start", "stop", "start", "start")


def deed(verb: str, /, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    return st.tuples(st.just(verb), st.fixed_dictionaries(arguments))


# All in one rule: of several, hypothesis leaves some out of a run, and the faults are found between them.
start = deed("start", entry=entries, many=st.integers(1, 4))
signal = deed("signal", at=any_one, key=keys, name=st.sampled_from(NAMES), event=keys)
operate = deed("operate", at=any_one, act=st.sampled_from(OPERATIONS))
deeds = st.one_of(
    start, start, signal, signal, operate, operate,
    deed("signal_many", at=any_one, many=st.integers(2, 6)),
    deed("signal_or_start", key=few, event=keys),
    deed("advance", seconds=st.sampled_from([1, 5, 61])),
    deed("node", number=WORKERS, act=st.sampled_from(PLUGS)),
)  # fmt: skip

figures: Counter[str] = Counter()  # of what happened in all runs
opened: list[str] = []  # the URL, for machines that hypothesis makes


class Soak(RuleBasedStateMachine):
    """Three workers, one client, one operator, and one that kills workers."""

    def __init__(self) -> None:
        super().__init__()
        self.environment = Environment(opened[-1])
        self.ids: list[int] = []
        self.operated: set[int] = set()
        self.sent: dict[int, str | None] = {}  # payload to event
        self.refused: set[int] = set()
        self.number = 0

    @initialize()
    def open(self) -> None:
        self.environment.do(self.environment.open())
        for number in range(NODES):
            self.environment.do(self.environment.start_node(number))

    @rule(deed=deeds)
    def let(self, deed: tuple[str, dict[str, Any]]) -> None:
        name, arguments = deed
        getattr(self, name)(**arguments)
        figures[name] += 1

    @property
    def engine(self) -> Any:
        return self.environment.harness.engine

    @property
    def sender(self) -> Any:
        """The engine that signals: the client's, or one beside a worker, which may claim the woken instance itself."""
        engines = [self.engine, *(node.engine for node in self.environment.nodes.values())]
        return engines[self.number % len(engines)]

    def start(self, entry: Entry, many: int) -> None:
        self.ids += [answer.id for answer in self.environment.do(self.engine.start_many([entry] * many))]

    def signal(self, at: int, key: int | None, name: str, event: int | None) -> None:
        known = self.known()
        target = f"pack {key}" if key is not None or not known else known[at % len(known)]
        self.send(event, lambda n, dedup: self.sender.signal(target, name, n, dedup_key=dedup))

    def signal_many(self, at: int, many: int) -> None:
        known = self.known()
        if known:
            for _ in range(many):
                self.send(None, lambda n, dedup: self.sender.signal(known[at % len(known)], "item", n, dedup_key=dedup))

    def signal_or_start(self, key: int, event: int | None) -> None:
        self.send(event, lambda n, dedup: self.engine.signal_or_start(
            Pack, {}, key=f"pack {key}", signal="item", payload=n, dedup_key=dedup))  # fmt: skip

    def send(self, event: int | None, call: Callable[[int, str | None], Any]) -> None:
        self.number += 1
        dedup = None if event is None else f"event {event}"
        try:
            self.environment.do(call(self.number, dedup))
        except NoTarget:
            self.refused.add(self.number)
        else:
            self.sent[self.number] = dedup

    def advance(self, seconds: int) -> None:
        self.environment.do(self.environment.harness.advance(timedelta(seconds=seconds)))

    def operate(self, at: int, act: str) -> None:
        known = self.known() if at % 3 else self.ids  # one in three, whatever became of it
        if not known:
            return
        target = known[at % len(known)]
        self.operated |= {row["id"] for row in self.environment.do(self.environment.sql(FAMILY, target))}
        with suppress(Duplicate, InvalidInput):  # its key has another holder by now, or it is done
            self.environment.do(self._operate(target, act))

    async def _operate(self, target: int, act: str) -> None:
        match act:
            case "retry":
                await self.engine.retry(target)
            case "restart":
                await self.engine.restart(target, step=STEPS[(await self.engine.get(target)).machine])
            case _:
                await self.engine.cancel(target, cascade=act == "cancel")

    def node(self, number: int, act: str) -> None:
        if act.startswith("kill"):
            self.environment.do(self.environment.kill_node(number))
        if act == "stop":
            self.environment.do(self.environment.stop_node(number))
        if act.endswith("start"):
            self.environment.do(self.environment.start_node(number))

    def known(self) -> list[int]:
        """The live instances, children too; else all that exist."""
        living = f"select id from stepwell.instances where {checks.LIVE} order by id"
        rows = self.environment.do(self.environment.sql(living))
        return [
            row["id"] for row in rows or self.environment.do(self.environment.sql("select id from stepwell.instances"))
        ]

    def teardown(self) -> None:
        try:
            if hasattr(self.environment, "resources"):
                self.environment.do(self.finish())
        finally:
            self.environment.close()

    async def finish(self) -> None:
        """Kill the workers, let new workers run until nothing is runnable, and check; then end everything and check."""
        for number in range(NODES):
            await self.environment.kill_node(number)
        await self.settle()
        await self.check()
        for _ in range(PUSHES):
            if await checks.ended(self.environment):
                break
            await self.push()
            await self.settle()
        left = await self.environment.sql(f"select * from stepwell.instances where {checks.LIVE}")
        assert not left, f"some never end: {[dict(row) for row in left]}"
        await self.check()
        figures["runs"] += 1
        for row in await self.environment.sql("select kind, count(*)::integer as number from soak_log group by 1"):
            figures[row["kind"]] += row["number"]
        [[steps, instances]] = await self.environment.sql(
            "select sum(fence)::integer, count(*) from stepwell.instances"
        )
        figures.update(fences=steps or 0, instances=instances)

    async def settle(self) -> None:
        """Let new workers run what is runnable, and stop."""
        for number in range(NODES, NODES + 2):
            await self.environment.start_node(number)
        await checks.settled(self.environment)
        for number in range(NODES, NODES + 2):
            await self.environment.stop_node(number)

    async def push(self) -> None:
        """Close every pack, and let every delay end."""
        for row in await self.environment.sql("select id from stepwell.instances where status = 'awaiting_signal'"):
            self.number += 1
            await self.engine.signal(row["id"], "close", self.number)
            self.sent[self.number] = None
        await self.environment.harness.advance(timedelta(hours=1))

    async def check(self) -> None:
        await checks.check(self.environment, self.operated)
        await checks.check_signals(self.environment, self.sent, self.refused)


def run(*, examples: int, steps: int, **more: Any) -> None:
    chosen = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, database=None,
        phases=[Phase.generate], suppress_health_check=list(HealthCheck), **more,
    )  # fmt: skip
    run_state_machine_as_test(Soak, settings=chosen)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # what a killed worker leaves open
def test_no_order_of_events_loses_repeats_or_blocks_an_instance() -> None:
    seconds = float(os.environ.get("STEPWELL_SOAK_SECONDS", "0"))
    with shared_database() as url:
        opened.append(url)
        if not seconds:
            run(examples=4, steps=25, derandomize=True)
            return
        number = int(os.environ.get("STEPWELL_SOAK_SEED", str(int(time.time()))))
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            print(f"soak: seed {number}", flush=True)  # noqa: T201 - what to run again when it fails
            seed(number)(Soak)
            run(examples=5, steps=60)
            print(f"soak: {dict(figures)}", flush=True)  # noqa: T201
            number += 1
