"""Judge completions of interactions, and let their instances continue. `complete` chooses the statement:

| condition | statement |
|---|---|
| `waits`: the caller's completions wait for locked instances | locks the instances, then `interactions/complete` |
| some are simple (`Given.is_simple`), their await unit has no backoff | `interactions/complete_fast`; others: `rest` |
| one completion | `interactions/complete_and_settle` |
| at least four per instance | waits 50 ms for the instances, then `interactions/complete` |
| anything else, or still locked | locks the instances that are free, then `interactions/complete` |

The fast statement says nothing of what it does not take: that is `rest` too, and the next call judges it fully.
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

MANY = 4  # completions per instance that come together
SOON_MS = 50  # how long these wait for its lock
MOST_REMEMBERED = 10_000  # interactions that the fast statement left out
_ENCODER = msgspec.json.Encoder()


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A completion of an interaction that was found: its reply is JSON text; `problem` is why its type refuses it."""

    found: Found
    reply: str
    actor: str | None
    token: tuple[str, str, str, int, str, int | None] | None
    facts: str | None  # what was sent, if the reply was made of it
    is_checked: bool
    problem: str | None
    token_key: str | None = None  # the id of the key that has signed the token

    @property
    def is_simple(self) -> bool:
        """Whether only the status of its interaction is left to judge."""
        return self.is_checked and self.problem is None and self.facts is None and self.token is None


class Verdict(msgspec.Struct, frozen=True):
    """What became of a completion: 'admitted', 'duplicate', or why it was refused."""

    verdict: str
    problem: str | None
    status: str


_ADMITTED = Verdict("admitted", None, "completed")


class CompleteResult(msgspec.Struct, frozen=True):
    """Verdicts by position in the call, None if the instance is locked; and what may run because of them."""

    verdicts: dict[int, Verdict | None]
    settled: Settled
    rest: Sequence[int] = ()  # positions that are not judged yet: call `complete` with these


class CompletePaths:
    """What earlier completions of a process found. Only `complete` reads and writes it."""

    __slots__ = ("backoff", "left_out")

    def __init__(self) -> None:
        self.backoff = FastPathBackoff[int]()  # await units
        self.left_out: set[str] = set()  # interactions that the fast statement did not take

    def has_fast(self, given: Given) -> bool:
        """Whether the fast statement may take this one."""
        found = given.found
        return given.is_simple and found.id not in self.left_out and not self.backoff.has(found.unit_id)

    def leave_out(self, given: Sequence[Given]) -> None:
        """Let the full path judge these next, and for a moment what else completes their units."""
        if len(self.left_out) > MOST_REMEMBERED:
            self.left_out.clear()
        self.left_out.update([one.found.id for one in given])
        self.backoff.add({one.found.unit_id for one in given})


async def complete(
    db: Database, given: Sequence[Given], paths: CompletePaths, *, waits: bool = False
) -> CompleteResult:
    """Judge completions, no interaction twice, and let continue what may; `rest` is left for another call."""
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
    """Take the simple completions at these places; of those that are not taken nothing is known."""
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
    """Admit simple completions of simple interactions, no interaction twice; returns the positions of those taken."""
    [(places, queues)] = await db.fetch(
        "interactions/complete_fast", [g.found.id for g in given], [g.reply for g in given], [g.actor for g in given]
    )
    return set(places), Settled(queues)


async def _complete_one(db: Database, given: Given) -> CompleteResult:
    rows = await db.fetch("interactions/complete_and_settle", given.found.instance_id, _encoded([(0, given)]))
    if not rows:
        return CompleteResult({0: None}, Settled())
    [(verdict, problem, status, queues, transports, next_deadline)] = rows
    going_on = [queue for queue in queues if queue is not None]
    return CompleteResult(
        {0: Verdict(verdict, problem, status)}, Settled(going_on, transports or (), next_deadline)
    )


async def _complete_full(db: Database, given: Sequence[Given]) -> CompleteResult:
    """Judge completions of instances that are not locked, or not for long."""
    ids = sorted({g.found.instance_id for g in given})
    if len(given) >= MANY * len(ids):
        with suppress(Contention):
            # Ends of its items mostly hold each instance, for a moment: to wait is cheaper than to come again.
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
    """Judge completions, waiting for the locks of their instances; Contention beyond that time."""
    ids = sorted({g.found.instance_id for g in given})
    answers = _encoded(enumerate(given))  # before the locks are taken
    async with db.transaction() as session:
        if at_most_ms is None:
            await operators.lock(session, ids)
        else:
            await session.fetch("interactions/lock", ids, f"{at_most_ms}ms")
        return await _judge(session, len(given), answers)


def _encoded(ready: Iterable[tuple[int, Given]]) -> str:
    return _ENCODER.encode([_judged(place, given) for place, given in ready]).decode()


def _judged(place: int, given: Given) -> dict[str, Any]:
    """A completion as the statements that judge it read it."""
    return {
        "position": place, "id": given.found.id, "reply": msgspec.Raw(given.reply.encode()),
        "facts": None if given.facts is None else msgspec.Raw(given.facts.encode()), "actor": given.actor,
        "token": given.token, "token_key": given.token_key, "is_checked": given.is_checked, "problem": given.problem,
    }  # fmt: skip


async def _judge(session: Session, number: int, answers: str) -> CompleteResult:
    """Judge completions of instances that this transaction has locked; `number` is that of all in the call."""
    verdicts: dict[int, Verdict | None] = dict.fromkeys(range(number))
    numbers, returned, going = Counter[int](), Counter[int](), Counter[int]()
    queues: set[str] = set()
    for place, verdict, problem, status, unit_id, was_out, continues_in in await session.fetch(
        "interactions/complete", answers
    ):
        verdicts[place] = Verdict(verdict, problem, status)
        if verdict == "admitted":
            numbers[unit_id] += 1
            returned[unit_id] += was_out
            if continues_in is not None:
                going[unit_id] += 1
                queues.add(continues_in)
    settled = await await_units.settle(
        session, [Resolved(u, n, returned[u], continues=going[u]) for u, n in sorted(numbers.items())]
    )
    return CompleteResult(verdicts, msgspec.structs.replace(settled, queues=[*settled.queues, *queues]))
