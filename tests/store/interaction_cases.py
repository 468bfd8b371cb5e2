"""The statements about interactions with arguments of several sizes, and what their plans must look like."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import md5
from typing import Any

from stepwell._store.interactions import BEFORE_ALL
from tests.store.cases import SESSIONS
from tests.store.interaction_backlog import LOST, SENDER, SENDING, SHARE, TO_SEND, Questions

Arguments = Callable[[Questions, int], tuple[Any, ...]]
TABLES = ("interactions", "await_units", "instances")


@dataclass(frozen=True, slots=True)
class QuestionCase:
    """A statement at some size: its indexes, by their full names, and how much it may touch per row and besides."""

    name: str
    arguments: Arguments
    size: int
    indexes: frozenset[str]
    per_row: int = 10
    besides: int = 30
    session: str = "worker"
    label: str = ""

    @property
    def settings(self) -> Mapping[str, str]:
        return SESSIONS[self.session]

    def __str__(self) -> str:
        return f"{self.name} {self.size} {self.session} {self.label}".strip()


def _ids(rows: list[tuple[str, int]], size: int) -> list[str]:
    return [id_ for id_, _ in rows[:size]] or _new_ids(size)


def _new_ids(size: int) -> list[str]:
    """Spread over the index as random ones would be, and the same in every run."""
    return [_hash(f"new {n}") for n in range(size)]


def _hash(text: str) -> str:
    return md5(text.encode()).hexdigest()  # noqa: S324 - no secret


def _units(rows: list[tuple[str, int]], size: int) -> list[int]:
    return [unit for _, unit in rows[:size]] or list(range(1, size + 1))


def find(given: Questions, size: int) -> tuple[Any, ...]:
    ids = _ids(given.inbox, size)
    return ids, [None] * len(ids), [""] * len(ids)


def find_by_correlation(_: Questions, size: int) -> tuple[Any, ...]:
    addresses = [_hash(f"c{n}") for n in range(1, size + 1)]  # as the backlog made them
    return [None] * size, addresses, [""] * size


def admit(given: Questions, size: int) -> tuple[Any, ...]:
    ids = _ids(given.inbox, size)
    return (json.dumps([{"position": n, "id": id_, "reply": 1, "is_checked": False} for n, id_ in enumerate(ids)]),)


def admit_tokens(given: Questions, size: int) -> tuple[Any, ...]:
    token = {"token": [], "token_key": "k", "seal": "aa"}
    return (json.dumps([{**answer, **token} for answer in json.loads(admit(given, size)[0])]),)


def answer_plain(given: Questions, size: int) -> tuple[Any, ...]:
    ids = _ids(given.inbox, size)
    return ids, ["1"] * len(ids), [None] * len(ids)


def record(given: Questions, size: int) -> tuple[Any, ...]:
    ids = _ids(given.sending, size)
    size = len(ids)
    return SENDER, ids, [1] * size, [None] * size, [None] * size, [None] * size


def seal(given: Questions, size: int) -> tuple[Any, ...]:
    ids = _ids(given.sending, size)
    return SENDER, ids, ["aa"] * len(ids)


def fail(given: Questions, size: int) -> tuple[Any, ...]:
    ids = _ids(given.sending, size)
    return SENDER, ids, [1] * len(ids), ["gone"] * len(ids)


def settle(given: Questions, size: int) -> tuple[Any, ...]:
    units = _units(given.inbox, size)
    size = len(units)
    return units, [1] * size, [1] * size, [None] * size, [False] * size, [0] * size, [0] * size


def settle_big(given: Questions, size: int) -> tuple[Any, ...]:
    """Completions of this number of items of one unit."""
    return [given.big or 1], [size], [size], [None], [False], [size], [size]


def open_(given: Questions, size: int) -> tuple[Any, ...]:
    asked = [
        {"unit_id": 10_000_000 + n, "instance_id": instance, "id": new, "step": "ask", "transport": "manual",
         "sends": False, "reply_type": "x", "on_timeout": "wake", "requires_token": False, "request": 1, "fields": "",
         "is_shared": False, "timeout": "PT5M", "max_items": 0}
        for n, (instance, new) in enumerate(zip(_units(given.inbox, size), _new_ids(size), strict=False))
    ]  # fmt: skip
    return json.dumps(asked), ["x"], ["int"], ["{}"], [None]


def append(given: Questions, size: int) -> tuple[Any, ...]:
    head = {"unit_id": given.big or 1, "instance_id": given.big or 1, "first": 10_000_000, "step": "ask",
            "transport": "manual", "sends": False, "reply_type": "x", "on_timeout": "wake", "requires_token": False,
            "is_shared": False, "window": 200, "type_name": "int", "reference": {}}  # fmt: skip
    return json.dumps(head), _new_ids(size), ["1"] * size, [""] * size


def append_again(given: Questions, size: int) -> tuple[Any, ...]:
    """This number of stored items, given once more."""
    head, ids, _, fields = append(given, size)
    return json.dumps({**json.loads(head), "first": 0}), ids, ['{"n": 1}'] * size, fields


def pending(given: Questions, size: int, *, deep: bool = False, **filters: Any) -> tuple[Any, ...]:
    named = [filters.get(name) for name in ("assignee", "group", "machine", "step", "transport", "overdue")]
    return ("", *named, size, given.cursor if deep else None)


def _on(**names: str) -> frozenset[str]:
    return frozenset(f"{table}_{name}" for table, listed in names.items() for name in listed.split())


_Q, _QU = _on(interactions="pkey"), _on(interactions="pkey", await_units="pkey")
CASES = [
    *(QuestionCase("interactions/find", find, n, _QU | {"interactions_correlation"}) for n in (1, 100)),
    *(QuestionCase("interactions/find", find_by_correlation, n, _QU | {"interactions_correlation"}, label="by address")
      for n in (1, 100)),
    *(QuestionCase("interactions/complete", admit, n, _QU | {"instances_pkey"}, 45) for n in (1, 100)),
    *(QuestionCase("interactions/complete", admit_tokens, n, _QU | {"instances_pkey"}, 45, label="by tokens")
      for n in (1, 100)),
    *(QuestionCase("interactions/complete_fast", answer_plain, n, _QU | {"instances_pkey"}, 75) for n in (1, 100)),
    *(QuestionCase("interactions/claim", lambda _, n: (SENDER, "there", n, True), n, _QU | {"interactions_dispatch"},
                   50) for n in (1, 50)),
    *(QuestionCase("interactions/claim", lambda _, n: (SENDER, "there", n, False), n, _QU | {"interactions_dispatch"},
                   50, label="without keys") for n in (1, 50)),
    QuestionCase("interactions/has_guarded", lambda _, n: ("there",), TO_SEND // SHARE,
                 _QU - _Q | {"interactions_dispatch"}),
    *(QuestionCase("interactions/record", record, n, _Q, 50) for n in (1, 50)),
    QuestionCase("interactions/add_token_hash", lambda given, n: (_ids(given.sending, 1)[0], "aa"), 1, _Q, 50),
    *(QuestionCase("interactions/add_token_hashes", seal, n, _Q, 50) for n in (1, 50)),
    *(QuestionCase("interactions/fail", fail, n, _QU, 45) for n in (1, 50)),
    QuestionCase("interactions/release", lambda _, n: (SENDER, "there", []), SENDING // SHARE,
                 _Q | {"interactions_dispatching"}, 50),
    QuestionCase("interactions/release_lost", lambda _, n: (), (SENDING + LOST) // SHARE,
                 _Q | {"interactions_dispatching"}, 50),
    QuestionCase("interactions/find_overdue", lambda _, n: BEFORE_ALL, 60,
                 _on(interactions="deadline", await_units="pkey"), 10),
    *(QuestionCase("interactions/expire", lambda given, n: (_ids(given.late, n),), n, _QU, 45) for n in (1, 60)),
    QuestionCase("interactions/read", lambda given, n: (_ids(given.inbox, n), ""), 50, _QU, session="client"),
    QuestionCase("interactions/pending", pending, 51, _QU - _Q | {"interactions_pending"}, session="anew"),
    QuestionCase("interactions/pending", lambda given, n: pending(given, n, deep=True), 51,
                 _QU - _Q | {"interactions_pending"}, 4, 10, session="anew", label="deep"),
    QuestionCase("interactions/pending", lambda given, n: pending(given, n, deep=True, overdue=False), 51,
                 _QU - _Q | {"interactions_pending"}, 4, 10, session="anew", label="deep, not overdue"),
    QuestionCase("interactions/pending", lambda given, n: pending(given, n, assignee="ana"), 10,
                 _QU - _Q | {"interactions_assignee"}, session="anew", label="of one person"),
    QuestionCase("interactions/pending", lambda given, n: pending(given, n, group="few"), 10,
                 _QU - _Q | {"interactions_group"}, session="anew", label="of one group"),
    QuestionCase("interactions/pending", lambda given, n: pending(given, n, overdue=True), 60,
                 _QU - _Q | {"interactions_pending"}, session="anew", label="overdue"),
    *(QuestionCase("await_units/open", open_, n, _on(instances="pkey"), 35) for n in (1, 100)),
    *(QuestionCase("await_units/append", append, n, _on(instances="pkey", await_units="pkey", interactions="item"), 35,
                   60)
      for n in (1, 500)),
    QuestionCase("await_units/append", append_again, 500, _on(instances="pkey", await_units="pkey",
                                                              interactions="item"), 10,
                 60, label="again"),
    *(QuestionCase("await_units/settle", settle, n,
                   _on(await_units="pkey", instances="pkey", interactions="pkey queued item"), 45) for n in (1, 100)),
    *(QuestionCase("await_units/settle", settle_big, n,
                   _on(await_units="pkey", instances="pkey", interactions="pkey queued item"), 45, 60,
                   label="of one unit") for n in (1, 100)),
    *(QuestionCase("await_units/outputs", lambda given, n: (given.big, given.big, 7, n), n, _on(instances="parent"), 5)
      for n in (1, 500)),
    *(QuestionCase("interactions/lock", lambda given, n: (_units(given.inbox, n), "100ms"), n, _on(instances="pkey"))
      for n in (1, 100)),
    QuestionCase("await_units/hold", lambda given, n: (given.big, SENDER, 1), 1, _on(instances="pkey",
                                                                                     await_units="pkey")),
    *(QuestionCase("await_units/load", lambda given, n: (_units(given.inbox, n),), n,
                   _on(await_units="pkey", interactions="item")) for n in (1, 100)),
    *(QuestionCase("await_units/close", lambda given, n: (_units(given.inbox, n),), n,
                   _on(await_units="open", interactions="item"), 70) for n in (1, 100)),
    QuestionCase("await_units/release_stuck", lambda _, n: (0,), 500, _on(instances="external pkey",
                                                                          await_units="pkey"), 8),
    QuestionCase("await_units/find_orphaned", lambda _, n: (0,), 500,
                 _on(await_units="open", instances="pkey continuing", interactions="item queued"), 12),
    QuestionCase("await_units/recount", lambda given, n: (_units(given.inbox, n), []), 100,
                 _on(await_units="pkey", instances="continuing parent", interactions="item")),
    QuestionCase("await_units/start_missing", lambda given, n: (_units(given.inbox, n),), 100,
                 _on(await_units="pkey", instances="pkey continuing parent", interactions="item")),
    QuestionCase("await_units/drop_items", lambda given, n: ([given.big or 1],), 1, _on(instances="pkey continuing"),
                 40),
    QuestionCase("await_units/recount_item", lambda given, n: (given.big or 1,), 1, _on(await_units="pkey",
                                                                                        instances="pkey")),
    QuestionCase("await_units/close_orphaned", lambda given, n: (_units(given.inbox, n),), 100,
                 _on(await_units="pkey", instances="pkey", interactions="item"), 20),
    QuestionCase("await_units/hold_ended", lambda given, n: (_units(given.inbox, 1)[0],), 1,
                 _on(await_units="pkey", instances="pkey")),
    QuestionCase("await_units/reopen", lambda given, n: (_units(given.inbox, 1)[0], 0, 1000, 4), 1,
                 _on(await_units="pkey", instances="pkey parent", interactions="pkey item"), 10, 40),
    QuestionCase("await_units/resume", lambda given, n: (_units(given.inbox, 1)[0], 0, 0), 1,
                 _on(await_units="pkey", instances="pkey")),
    QuestionCase("instances/wake_due", lambda _, n: (["default"], ["there", "none"]), 3,
                 _on(instances="due claim fair pkey deadline", interactions="deadline dispatch")),
]  # fmt: skip
