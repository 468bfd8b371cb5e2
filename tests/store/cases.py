"""The hot statements with arguments of several sizes, and what their plans must look like."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import asyncpg

from stepwell._store.connection.pool import CLIENT, PLAN_ANEW, WORKER
from stepwell._store.operations.encoding import numbers
from tests.store.backlog import HOT, LABELS, LIVE_WORKERS

SESSIONS: dict[str, Mapping[str, str]] = {
    "worker": WORKER,
    "client": CLIENT,
    "anew": {**CLIENT, **dict([PLAN_ANEW.removeprefix("set local ").split(" = ")])},
}
LEASE, BEAT = timedelta(seconds=60), timedelta(seconds=20)


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows of the backlog that the arguments name."""

    executing: list[tuple[int, int, int]]  # id, worker, fence
    runnable: list[int]
    carried: int  # rows claimed by worker 1
    parked: list[int] = field(default_factory=list)
    signals: list[int] = field(default_factory=list)  # in the inboxes of the parked
    limited: list[int] = field(default_factory=list)  # in the wait queues of limits
    parents: list[int] = field(default_factory=list)  # with ten ended children each

    @property
    def lost(self) -> list[int]:
        return [id_ for id_, worker, _ in self.executing if worker > LIVE_WORKERS]


Arguments = Callable[[Sample, int], tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class Case:
    """A statement at some size: its indexes on `instances`, and how much it may touch per row and besides."""

    name: str
    arguments: Arguments
    size: int = 1
    indexes: frozenset[str] = frozenset({"instances_pkey"})
    per_row: int = 10
    besides: int = 30
    session: str = "worker"
    inbox: frozenset[str] = frozenset()  # its indexes on `signals`
    by_statistics: bool = False  # the planner is free to choose: which status is rare, only statistics can say

    @property
    def settings(self) -> Mapping[str, str]:
        return SESSIONS[self.session]

    def __str__(self) -> str:
        return f"{self.name} {self.size} {self.session}"


async def look(url: str) -> Sample:
    connection = await asyncpg.connect(url)
    try:
        return await sample(connection)
    finally:
        await connection.close()


async def sample(connection: asyncpg.Connection) -> Sample:
    executing = await connection.fetch(
        "select id, worker_id, fence from stepwell.instances where status = 'executing' order by id"
    )
    runnable = await connection.fetch(
        "select id from stepwell.instances where status = 'runnable' and hold is null order by id limit 1000"
    )
    carried = sum(row["worker_id"] == 1 for row in executing)
    parked = await connection.fetch(
        "select id from stepwell.instances where status = 'awaiting_signal' and has_inbox order by id limit 1000"
    )
    signals = await connection.fetch(
        "select id from stepwell.signals where instance_id = any ($1::bigint[]) order by id", [r["id"] for r in parked]
    )
    parents = await connection.fetch(
        "select parent_id as id from stepwell.instances where child_index = 9 order by id limit 1000"
    )
    limited = await connection.fetch(
        "select id from stepwell.instances where hold in ('limit', 'rate') order by id limit 1000"
    )
    return Sample(
        [tuple(row) for row in executing], [row["id"] for row in runnable], carried,
        *([row["id"] for row in rows] for rows in (parked, signals, limited, parents)),
    )  # fmt: skip


def claim(_: Sample, size: int) -> tuple[Any, ...]:
    return 1, "default", size, LABELS, []


def claim_fair(_: Sample, size: int) -> tuple[Any, ...]:
    """From a queue that has just become fair: no row has a share yet."""
    return *claim(_, size), [0], [1], 2


def commit(given: Sample, size: int) -> tuple[Any, ...]:
    claims = given.executing[:size] or [(n, 1, 1) for n in range(1, size + 1)]
    new = {"status": "runnable", "step": "pack", "version": 1, "stores": True, "state": {"order": 1}}
    return (json.dumps([{"id": id_, "worker_id": worker, "fence": fence, **new} for id_, worker, fence in claims]),)


def commit_fast(given: Sample, size: int) -> tuple[Any, ...]:
    claims = given.executing[:size] or [(n, 1, 1) for n in range(1, size + 1)]
    ids, workers, fences = zip(*claims, strict=True)
    texts = ["{" + ",".join(map(str, each)) + "}" for each in (ids, fences, ["runnable"] * len(ids))]
    words = ["\x1e".join([text] * len(ids)) for text in ("pack", '{"order": 1}', "")]
    return workers[0], len(ids), *texts, *words, "{}"


def commit_ends(given: Sample, size: int) -> tuple[Any, ...]:
    *outcomes, _ = commit_fast(given, size)
    return *outcomes, "{" + ",".join(map(str, given.parents[:20])) + "}"


def start(_: Sample, size: int) -> tuple[Any, ...]:
    none = [None] * size
    return (
        ["order"] * size, [1] * size, ["ship"] * size, ["default"] * size, [0] * size, none, none, [""] * size, none,
        none, none, ['{"order": 1}'] * size, none, none, none, [], [],
    )  # fmt: skip


def start_alike(_: Sample, size: int) -> tuple[Any, ...]:
    states = "\x1e".join(['{"order": 1}'] * size)
    return states, "order", 1, "ship", "default", 0, None, None, "", None, None


def spawn(_: Sample, size: int) -> tuple[Any, ...]:
    """Half of them are inserted already claimed."""
    states, *common = start_alike(_, size)
    lists = ["{" + ",".join(map(str, numbers)) + "}" for numbers in ([1] * size, [1] * size, range(size))]
    return states, *lists, *common, size // 2, 1


def start_keyed(_: Sample, size: int) -> tuple[Any, ...]:
    arguments = list(start(_, size))
    arguments[8:10] = [f"new {n:06}" for n in range(size)], ["live"] * size
    return tuple(arguments)


def occupants(_: Sample, size: int) -> tuple[Any, ...]:
    return [""] * size, [f"order {n}" for n in range(size)]


def recheck(given: Sample, size: int) -> tuple[Any, ...]:
    ids = given.parked[:size]
    return ids, ["{1,2,3}"] * len(ids)


def consume(given: Sample, size: int) -> tuple[Any, ...]:
    return (given.signals[:size],)


def deliver(given: Sample, size: int) -> tuple[Any, ...]:
    ids = given.parked[:size] or list(range(1, size + 1))
    size = len(ids)
    none = [None] * size
    return ids, [""] * size, none, ["paid"] * size, ["7"] * size, [f"event of {id_}" for id_ in ids]


def deliver_plain(given: Sample, size: int) -> tuple[Any, ...]:
    return _plain(given.parked[:size] or list(range(1, size + 1)))


def _plain(ids: list[int]) -> tuple[Any, ...]:
    return "{" + ",".join(map(str, ids)) + "}", *("\x1e".join([text] * len(ids)) for text in ("paid", "7"))


def deliver_by_key(_: Sample, size: int) -> tuple[Any, ...]:
    none = [None] * size
    return none, [""] * size, [f"order {n}" for n in range(size)], ["paid"] * size, ["7"] * size, none


def ends(given: Sample, size: int) -> tuple[Any, ...]:
    ids = given.parents[:size] or list(range(1, size + 1))
    return ids, [0] * len(ids)


def settle(given: Sample, size: int) -> tuple[Any, ...]:
    ids = given.parked[:size] or list(range(1, size + 1))
    return ids, [0] * len(ids)


def children(given: Sample, size: int) -> tuple[Any, ...]:
    return (*ends(given, size // 10), -1, 5_000)


def admit(given: Sample, size: int) -> tuple[Any, ...]:
    ids = given.runnable[:size] or list(range(1, size + 1))
    half = len(ids) // 2
    denied = ids[half + 1 :]
    return (
        1, ids[: half + 1], [100_000 + n for n in range(half + 1)],
        denied, ["rate"] * len(denied), [None] * len(denied), [HOT], [0.5], [0.1],
    )  # fmt: skip


def begin(given: Sample, size: int, *, by_limits: bool) -> tuple[Any, ...]:
    held = [id_ for id_, worker, _ in given.executing if worker == 1][:size]
    return 1, datetime.now(UTC), "{}", numbers(held), by_limits


def release(given: Sample, _: int) -> tuple[Any, ...]:
    held = [(id_, fence) for id_, worker, fence in given.executing if worker == 1]
    return 1, [id_ for id_, _ in held], [fence for _, fence in held]


def listed(
    below: int | None = None, statuses: list[str] | None = None, key: str | None = None
) -> tuple[Any, ...]:
    return below, statuses, None, None, None, None, None if key is None else "", key, None, None, 51


def _on(*names: str) -> frozenset[str]:
    return frozenset(f"instances_{name}" for name in names)


_INBOX, _SIGNAL = frozenset({"signals_inbox"}), frozenset({"signals_pkey"})
CASES = [
    *(Case("instances/claim", claim, n, _on("claim", "concurrency_key"), 18, 40) for n in (1, 50, 500)),
    *(Case("instances/claim_fast", claim, n, _on("claim"), 17, 40) for n in (1, 50, 500)),
    *(Case("instances/claim_started_fast", claim, n, _on("claim"), 22, 45, inbox=_INBOX) for n in (1, 32)),
    *(Case("fair_queues/claim", claim_fair, n, _on("claim", "fair", "concurrency_key"), 18, 60) for n in (1, 50, 500)),
    Case("fair_queues/migrate", lambda _, n: (["default", "mail"],), 1, _on("claim", "fair", "pkey")),
    *(Case("instances/commit", commit, n, per_row=40) for n in (1, 100, 1000)),
    *(Case("instances/commit_fast", commit_fast, n, per_row=40) for n in (1, 100, 1000)),
    Case("instances/commit_fast", commit_ends, 100, per_row=41),
    Case("instances/wake_due", lambda _, n: (["default", "mail", "none"], ["webhook", "none"]), 3,
         _on("due", "claim", "fair", "pkey", "deadline")),
    *(Case("workers/mark_started", partial(begin, by_limits=slots), 50, _on("pkey"), 10) for slots in (False, True)),
    Case("workers/beat", lambda _, n: (1, LEASE, 3, BEAT, "host", "boot", 1, "p1"), 100, _on("executing"), 3),
    Case("instances/find_lost", lambda _, n: (1, LEASE), 2000, _on("executing"), 4),
    Case("instances/find_executing", lambda _, n: ([19, 20],), 200, _on("executing"), 3),
    Case("instances/reap", lambda given, n: (given.lost, 10, "{}"), 200, per_row=45),
    Case("instances/release", release, 100, per_row=40),
    Case("instances/verify", lambda given, n: (given.runnable[:n],), 100, per_row=5),
    Case("instances/hold_unknown_versions", lambda given, n: (given.runnable[:n],), 100, per_row=5),
    Case("instances/admit_versions", lambda _, n: (LABELS, True, []), 1, _on("unrunnable", "pkey")),
    Case("concurrency_keys/hold", lambda given, n: (given.runnable[:n],), 100, _on("pkey", "concurrency_key"), 6),
    Case("concurrency_keys/admit", lambda _, n: ([HOT, *(f"key {k}" for k in range(1, n))],), 50,
         _on("behind_key", "concurrency_key", "pkey"), 7),
    Case("concurrency_keys/find_idle", lambda _, n: ("", "", "", 1_000), 1,
         _on("behind_key", "concurrency_key", "limit_queue", "rate_queue", "slot", "unlimited"),
         besides=60),  # three recursive reads; their first pages may hold dead rows
    Case("limits/lock_rows", lambda given, n: (given.runnable[:n], "default"), 100, per_row=5),
    *(Case("limits/read_candidates", lambda given, n: (given.limited[:n], "default"), n,
           _on("pkey", "concurrency_key", "slot", "rate_queue"), 8, 60) for n in (1, 100)),
    *(Case("limits/admit", admit, n, per_row=80) for n in (1, 100)),
    *(Case("limits/admit_waiting", lambda _, n: ([HOT], [6], n == 400), n,  # 6 of 4 queues; and the first 100 of each
           _on("slot", "limit_queue", "pkey", "claim", "fair"), per_row) for n, per_row in ((24, 10), (400, 2))),
    Case("limits/admit_due", lambda _, n: ([HOT],), 44, _on("rate_queue", "pkey"), 6, 60),  # 10 tokens, 4 queues
    Case("limits/wake_rates", lambda _, n: ([HOT],), 1, frozenset()),
    Case("limits/recheck_rates_of_queue", lambda _, n: ("default", "", 5_000), 1, _on("rate_queue")),
    Case("limits/recheck_rates", lambda _, n: (HOT, None, 5_000), 1, frozenset()),
    Case("limits/find_waiting", lambda _, n: (HOT, None, 5_000), 1, _on("limit_queue")),
    Case("limits/prune", lambda _, n: ("", 5_000), 1, _on("rate_queue")),
    Case("limits/admit_held", lambda _, n: ("", 0, 5_000), 1, _on("unlimited", "pkey")),
    Case("workers/forget", lambda _, n: (1, LEASE), 20, _on("executing"), 6),
    *(Case("signals/load", lambda given, n: (given.parked[:n], 0, 5_000), n, frozenset(), 8, inbox=_INBOX)
      for n in (1, 100)),
    *(Case("signals/recheck", recheck, n, _on("pkey"), 45, inbox=_INBOX) for n in (1, 100)),
    *(Case("signals/consume", consume, n, frozenset(), 16, inbox=_SIGNAL) for n in (1, 100)),
    *(Case("signals/drop", lambda given, n: (given.parked[:n], True, 5_000, 0), n, _on("pkey"), 18,
           inbox=_INBOX | _SIGNAL) for n in (1, 100)),
    *(Case("children/lock_parents", lambda given, n: (given.parents[:n],), n) for n in (1, 100)),
    *(Case("children/join", ends, n, per_row=45) for n in (1, 100)),
    *(Case("children/settle", settle, n, per_row=45) for n in (1, 100)),
    *(Case("children/load", children, n, _on("parent"), per_row=11) for n in (10, 500)),
    Case("children/find_childless", lambda _, n: (0,), 1, _on("joining", "parent")),
    *(Case("children/recount", lambda given, n: (given.parents[:n],), n, _on("pkey", "parent"), 60) for n in (1, 100)),
    Case("instances/prune", lambda _, n: (n,), 1000, _on("finished", "pkey"), 30, inbox=_INBOX),
    Case("instances/find_tombstoned", lambda given, n: (given.runnable[:n],), 100, per_row=10),
    Case("instances/undo_start", lambda given, n: (given.runnable[:n],), 100, per_row=11),
    *(Case("signals/deliver", deliver, n, _on("guard", "pkey"), 60, session="client") for n in (1, 100)),
    *(Case("signals/deliver_fast", deliver_plain, n, _on("pkey"), 50, session="client") for n in (1, 100)),
    Case("signals/deliver", deliver_by_key, 100, _on("guard", "pkey"), 60, session="client"),
    *(Case("instances/start", start, n, frozenset(), 16, 40, "client") for n in (1, 1000)),
    Case("instances/start", start_keyed, 1000, frozenset(), 25, 40, "client"),
    Case("instances/start", start, 1000, frozenset(), 16, 40),
    *(Case("instances/start_fast", start_alike, n, frozenset(), 14, 40, s)
      for n, s in ((1, "client"), (1000, "client"), (1000, "worker"))),
    *(Case("children/start_fast", spawn, n, frozenset(), 16, 40) for n in (1, 1000)),
    *(Case("instances/read", lambda given, n: (given.runnable[:n],), n, session="client") for n in (1, 100)),
    Case("instances/watch", lambda given, _: (given.runnable[7] if given.runnable else 8,), session="client"),
    Case("instances/find_key_holders", occupants, 100, _on("guard"), session="anew"),
    Case("instances/find_key", lambda _, n: ("", "order 100"), 1, _on("guard", "key"), session="client"),
    Case("instances/list", lambda _, n: listed(), 51, per_row=6, session="anew"),
    Case("instances/list", lambda _, n: listed(key="order 100"), 1, _on("key"), per_row=40, session="anew"),
    Case("instances/list", lambda _, n: listed(35_000, ["failed"]), 51, per_row=40, session="anew",
         by_statistics=True),
]  # fmt: skip
