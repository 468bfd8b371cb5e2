"""One task of a client: how it is started, which signals it gets, how it must end."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.machines import (  # fmt: skip
    CHILDREN,
    ROUNDS,
    Asker,
    Busy,
    Collector,
    Keyed,
    Limited,
    Numbers,
    Rated,
    Sleeper,
    Transfer,
    Tree,
    ranking,
)

ACCOUNTS = 4
INSIDE = 0.01, 0.01, 0.2  # seconds in a key or a slot
WRONG = 1_000_000  # what a second, different reply adds to the right one


@dataclass(eq=False)
class Conversation:
    """`…_at`: when the engine confirmed it, None before; after a failover, what may be lost is None again."""

    key: str
    machine: Any
    state: Any
    expected: Any
    options: dict[str, Any] = field(default_factory=dict)
    signals: list[int] = field(default_factory=list)
    steps: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of the ledger, by subject
    started_at: float | None = None
    signalled_at: list[float | None] = field(default_factory=list)
    ended_at: float | None = None
    told: Any = None  # the status and the result that the engine reported to its client

    @property
    def is_brief(self) -> bool:
        """Whether it is deleted a few seconds after its end."""
        return bool(getattr(self.machine, "retention", None))

    @property
    def name(self) -> str:
        return str(getattr(self.machine, "name", self.machine))

    def forget_since(self, moment: float) -> bool:
        """Treat everything confirmed after that moment as unconfirmed; returns whether there is work to repeat."""
        def sure(at: float | None) -> float | None:
            return at if at is not None and at <= moment else None

        before = (self.started_at, self.signalled_at, self.ended_at)
        self.started_at, self.ended_at = sure(self.started_at), sure(self.ended_at)
        self.signalled_at = [sure(at) for at in self.signalled_at]
        if self.ended_at is None:
            self.told = None
        return before != (self.started_at, self.signalled_at, self.ended_at)


def points(number: int) -> int:
    """The reply of the provider."""
    return 100 + number


def _transfer(key: str, dice: random.Random) -> Conversation:
    trail = ["debit", "check", "credit"]
    return Conversation(key, Transfer, {"subject": key}, trail, steps={key: ("debit", "credit")})


def _collector(key: str, dice: random.Random) -> Conversation:
    count = dice.randrange(2, 8)
    state = {"subject": key, "count": count, "consumes": dice.random() < 0.5, "got": []}
    numbers = list(range(count))
    return Conversation(key, Collector, state, numbers, signals=numbers, signalled_at=[None] * count)


def _sleeper(key: str, dice: random.Random) -> Conversation:
    return Conversation(key, Sleeper, {"subject": key, "seconds": dice.uniform(0.2, 1.5)}, "slept")


def _busy(key: str, dice: random.Random) -> Conversation:
    return Conversation(key, Busy, {"subject": key, "seconds": dice.uniform(0.3, 1)}, "worked")


def _tree(key: str, dice: random.Random) -> Conversation:
    steps = {f"{key}/{round_}.{child}": ("work",) for round_ in range(ROUNDS) for child in range(CHILDREN)}
    sums = [CHILDREN * (CHILDREN + 1) // 2] * ROUNDS
    return Conversation(key, Tree, {"subject": key, "sums": []}, sums, steps=steps)


def _keyed(key: str, dice: random.Random) -> Conversation:
    account = f"account-{dice.randrange(ACCOUNTS)}"
    state = {"subject": key, "account": account, "inside": dice.choice(INSIDE)}
    return Conversation(key, Keyed, state, "added", {"concurrency_key": account}, steps={key: ("add",)})


def _limited(key: str, dice: random.Random) -> Conversation:
    state = {"subject": key, "inside": dice.choice(INSIDE)}
    return Conversation(key, Limited, state, "entered", steps={key: ("enter",)})


def _rated(key: str, dice: random.Random) -> Conversation:
    return Conversation(key, Rated, {"subject": key}, "begun", steps={key: ("begin",)})


def _asker(key: str, dice: random.Random) -> Conversation:
    count = dice.randrange(2, 8)
    return Conversation(key, Asker, {"subject": key, "count": count}, [points(n) for n in range(count)])


def _pipeline(key: str, dice: random.Random) -> Conversation:
    count = dice.randrange(1, 9)
    return Conversation(key, ranking, Numbers(key, count), [[n, points(n)] for n in range(count)])


KINDS: list[Callable[[str, random.Random], Conversation]] = [
    _transfer, _transfer, _collector, _sleeper, _busy, _busy, _tree, _keyed, _keyed, _limited, _limited, _rated, _rated,
    _asker, _pipeline,
]  # fmt: skip


def make(number: int, dice: random.Random) -> Conversation:
    """The conversation of that number."""
    kind = dice.choice(KINDS)
    return kind(f"{kind.__name__.removeprefix('_')}-{number}", dice)
