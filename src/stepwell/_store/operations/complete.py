"""Judge completions of interactions, and resume their instances. `complete` chooses the statement:

| condition | statement |
|---|---|
| `waits`: wait for locked instances | locks the instances, then `interactions/complete` |
| some are simple (`Given.is_simple`), their await unit has no backoff | `interactions/complete_fast`; others: `rest` |
| one completion | `interactions/complete_and_settle` |
| at least four per instance | waits up to 50 ms for the instances, then `interactions/complete` |
| anything else, or still locked | locks the unlocked instances, then `interactions/complete` |

The fast statement returns no verdict for completions that it does not take: they are in `rest` too, and the next call
judges them fully.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from stepwell._core.store_errors import Contention
from stepwell._store import await_units, children, operators
from stepwell._store.await_units import Resolved, Settled
from stepwell._store.connection.pool import Database, Queryable, Session
from stepwell._store.interactions import Found
from stepwell._store.operations.fast_path_backoff import FastPathBackoff

MANY = 4  # completions per instance in one call, for which waiting pays
SOON_MS = 50  # milliseconds that these wait for the lock of the instance
MOST_REMEMBERED = 10_000  # interactions that the fast statement left out
_ENCODER = msgspec.json.Encoder()


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A completion of a known interaction: its reply as JSON text; `problem` is why its type refuses the reply."""

    found: Found
    reply: str
    actor: str | None
    token: tuple[str, str, str, int, str, int | None] | None
    facts: str | None  # the data that was sent, if a projector made the reply from it
    is_checked: bool
    problem: str | None
    token_key: str | None = None  # the id of the key that has signed the token

    @property
    def is_simple(self) -> bool:
        """Whether only the status of its interaction remains to be judged."""
        return self.is_checked and self.problem is None and self.facts is None and self.token is None


class Verdict(msgspec.Struct, frozen=True):
    """The verdict on a completion: 'admitted', 'duplicate', or the reason of its refusal."""

    verdict: str
    problem: str | None
    status: str


_ADMITTED = Verdict("admitted", None, "completed")


class CompleteResult(msgspec.Struct, frozen=True):
    """Verdicts by position in the call, None if the instance is locked; and what they made claimable."""

    verdicts: dict[int, Verdict | None]
    settled: Settled
    rest: Sequence[int] = ()  # positions without a verdict: call `complete` again with these


class CompletePaths:
    """The results of a process's earlier completions. Only `complete` reads and writes them."""

    __slots__ = ("backoff", "left_out")

    def __init__(self) -> None:
        self.backoff = FastPathBackoff[int]()  # await units
        self.left_out: set[str] = set()  # interactions that the fast statement did not take

    def has_fast(self, given: Given) -> bool:
        """Whether the fast statement may take this completion."""
        found = given.found
        return given.is_simple and found.id not in self.left_out and not self.backoff.has(found.unit_id)

    def leave_out(self, given: Sequence[Given]) -> None:
        """Let the full path judge these next, and pause the fast path of their units."""
        if len(self.left_out) > MOST_REMEMBERED:
            self.left_out.clear()
        self.left_out.update([one.found.id for one in given])
        self.backoff.add({one.found.unit_id for one in given})


async def complete(
    db: Database, given: Sequence[Given], paths: CompletePaths, *, waits: bool = False
) -> CompleteResult:
    """Judge completions, at most one per interaction, and resume instances; `rest` remains for another call."""
    fast = [] if waits else [place for place, one in enumerate(given) if paths.has_fast(one)]
    if fast:
        return await _complete_fast(db, given, fast, paths)
    if waits:
        result = await _complete_waiting(db, given)
    elif len(given) == 1:
        result = await _complete_one(db, given[0])
    else:
        result = await _complete_full(db, given)
    if paths.left_out:
        paths.left_out.difference_update([one.found.id for one in given])
    return result


async def _complete_fast(
    db: Queryable, given: Sequence[Given], places: Sequence[int], paths: CompletePaths
) -> CompleteResult:
    """Take the simple completions at these positions; those that are not taken get no verdict."""
    simple = [given[place] for place in places]
    numbers, settled = await take_fast(db, simple)
    if len(numbers) < len(simple):
        paths.leave_out([one for number, one in enumerate(simple) if number not in numbers])
    else:
        paths.backoff.drop(one.found.unit_id for one in simple)
    taken = {places[number] for number in numbers}
    rest = [place for place in range(len(given)) if place not in taken] if len(taken) < len(given) else ()
    return CompleteResult(dict.fromkeys(sorted(taken), _ADMITTED), settled, rest)


async def take_fast(db: Queryable, given: Sequence[Given]) -> tuple[set[int], Settled]:
    """Admit simple completions of simple interactions, at most one per interaction; returns the admitted positions."""
    [(places, queues)] = await db.fetch(
        "interactions/complete_fast", [g.found.id for g in given], [g.reply for g in given], [g.actor for g in given]
    )
    return set(places), Settled(queues)


async def _complete_one(db: Database, given: Given) -> CompleteResult:
    rows = await db.fetch("interactions/complete_and_settle", given.found.instance_id, _encoded([(0, given)]))
    if not rows:
        return CompleteResult({0: None}, Settled())
    [(verdict, problem, status, queues, transports, next_deadline)] = rows
    woken = [queue for queue in queues if queue is not None]
    return CompleteResult(
        {0: Verdict(verdict, problem, status)}, Settled(woken, transports or (), next_deadline)
    )


async def _complete_full(db: Database, given: Sequence[Given]) -> CompleteResult:
    """Judge completions of instances that are unlocked, or locked for a short time only."""
    ids = sorted({g.found.instance_id for g in given})
    if len(given) >= MANY * len(ids):
        with suppress(Contention):
            # Mostly, ends of items lock the instance for a moment: waiting is cheaper than a retry.
            return await _complete_waiting(db, given, at_most_ms=SOON_MS)
    async with db.transaction() as session:
        locked = await children.lock_parents(session, ids)
        ready = [(place, g) for place, g in enumerate(given) if g.found.instance_id in locked]
        if not ready:
            return CompleteResult(dict.fromkeys(range(len(given))), Settled())
        return await _judge(session, len(given), _encoded(ready))


async def _complete_waiting(
    db: Database, given: Sequence[Given], *, at_most_ms: int | None = None
) -> CompleteResult:
    """Judge completions after waiting for the locks of their instances; Contention after `at_most_ms`."""
    ids = sorted({g.found.instance_id for g in given})
    completions = _encoded(enumerate(given))  # before the locks are taken
    async with db.transaction() as session:
        if at_most_ms is None:
            await operators.lock(session, ids)
        else:
            await session.fetch("interactions/lock", ids, f"{at_most_ms}ms")
        return await _judge(session, len(given), completions)


def _encoded(ready: Iterable[tuple[int, Given]]) -> str:
    return _ENCODER.encode([_judged(place, given) for place, given in ready]).decode()


def _judged(place: int, given: Given) -> dict[str, Any]:
    """A completion, as the judging statements read it."""
    return {
        "position": place, "id": given.found.id, "reply": msgspec.Raw(given.reply.encode()),
        "facts": None if given.facts is None else msgspec.Raw(given.facts.encode()), "actor": given.actor,
        "token": given.token, "token_key": given.token_key, "is_checked": given.is_checked, "problem": given.problem,
    }  # fmt: skip


async def _judge(session: Session, number: int, completions: str) -> CompleteResult:
    """Judge completions of instances that this transaction has locked, out of `number` in the call."""
    verdicts: dict[int, Verdict | None] = dict.fromkeys(range(number))
    numbers, returned, continuing = Counter[int](), Counter[int](), Counter[int]()
    queues: set[str] = set()
    for place, verdict, problem, status, unit_id, was_out, continues_in in await session.fetch(
        "interactions/complete", completions
    ):
        verdicts[place] = Verdict(verdict, problem, status)
        if verdict == "admitted":
            numbers[unit_id] += 1
            returned[unit_id] += was_out
            if continues_in is not None:
                continuing[unit_id] += 1
                queues.add(continues_in)
    settled = await await_units.settle(
        session, [Resolved(u, n, returned[u], continues=continuing[u]) for u, n in sorted(numbers.items())]
    )
    return CompleteResult(verdicts, msgspec.structs.replace(settled, queues=[*settled.queues, *queues]))
