"""Calls of `sql/interactions`: single questions, answered, sent and shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

import msgspec

from stepwell._core.codec import decode_value
from stepwell._core.faults import Contention
from stepwell._core.interactions import Dispatch, Interaction, InteractionStatus
from stepwell._store import children, operators, units
from stepwell._store.database import Database, Queryable, Session
from stepwell._store.units import Resolved, Settled

FULL_LOOK = 500  # late questions of one look
BEFORE_ALL = (datetime.min.replace(tzinfo=UTC), "00000000-0000-0000-0000-000000000000")
MANY = 4  # answers of one instance that come together
SOON_MS = 50  # how long these wait for whoever holds it
_ENCODER = msgspec.json.Encoder()


class Found(msgspec.Struct, frozen=True):
    """A question that an answer names."""

    id: str
    unit_id: int
    instance_id: int
    machine: str
    version: int
    step: str
    reference: str
    request: str | None = None  # and the time, if a projector makes the reply
    asked_at: datetime | None = None


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to a question that was found: its reply is JSON text; `problem` is what its type has against it."""

    found: Found
    reply: str
    actor: str | None
    token: tuple[str, str, str, int, str, int | None] | None
    facts: str | None  # what was sent, if the reply was made of it
    is_checked: bool
    problem: str | None
    token_key: str | None = None  # the id of the key that has signed the token

    @property
    def is_plain(self) -> bool:
        """Whether nothing is left to judge about it but how its question stands."""
        return self.is_checked and self.problem is None and self.facts is None and self.token is None


class Verdict(msgspec.Struct, frozen=True):
    """What became of an answer: 'admitted', 'duplicate', or why it was refused."""

    verdict: str
    problem: str | None
    status: str


class Sent(msgspec.Struct, frozen=True):
    """How one sending ended: over, or to be tried again after `delay`."""

    id: str
    attempt: int
    delay: timedelta | None = None
    metadata: str | None = None
    error: str | None = None


class Outgoing(msgspec.Struct, frozen=True):
    """A question to be sent, and whether it goes with a token."""

    dispatch: Dispatch
    requires_token: bool


async def find(db: Queryable, named: Sequence[tuple[str | None, str | None, str]]) -> dict[int, Found]:
    """Questions by (id, correlation, tenant), one of the first two each; those that are there, by position."""
    rows = await db.fetch(
        "interactions/find", [id_ for id_, _, _ in named], [correlation for _, correlation, _ in named],
        [tenant for _, _, tenant in named],
    )  # fmt: skip
    return {position: Found(*rest) for position, *rest in rows}


async def answer_plain(db: Queryable, given: Sequence[Given]) -> tuple[set[int], Settled]:
    """Take in plain answers to questions that are plain, no question twice; returns the places of those taken. Of the
    others nothing is known."""
    [(places, queues)] = await db.fetch(
        "interactions/answer_plain", [g.found.id for g in given], [g.reply for g in given], [g.actor for g in given]
    )
    return set(places), Settled(queues)


async def admit(db: Database, given: Sequence[Given]) -> tuple[list[Verdict | None], Settled]:
    """Judge answers, no question twice, and let go on what may. None: its instance is held by somebody else."""
    if len(given) == 1:
        return await _admit_one(db, given[0])
    ids = sorted({g.found.instance_id for g in given})
    if len(given) >= MANY * len(ids):
        with suppress(Contention):
            # Each is mostly held by those of its items that end, for a moment: to wait is cheaper than to come again.
            return await admit_patiently(db, given, at_most_ms=SOON_MS)
    async with db.transaction() as session:
        locked = await children.lock_parents(session, ids)
        ready = [(place, g) for place, g in enumerate(given) if g.found.instance_id in locked]
        return await _admit(session, len(given), _encoded(ready)) if ready else ([None] * len(given), Settled())


async def _admit_one(db: Database, given: Given) -> tuple[list[Verdict | None], Settled]:
    rows = await db.fetch("interactions/answer", given.found.instance_id, _encoded([(0, given)]))
    if not rows:
        return [None], Settled()
    [(verdict, problem, status, queues, transports, next_deadline)] = rows
    going_on = [queue for queue in queues if queue is not None]
    return [Verdict(verdict, problem, status)], Settled(going_on, transports or (), next_deadline)


def _judged(place: int, given: Given) -> dict[str, Any]:
    """An answer as the statements that judge it read it."""
    return {
        "position": place, "id": given.found.id, "reply": msgspec.Raw(given.reply.encode()),
        "facts": None if given.facts is None else msgspec.Raw(given.facts.encode()), "actor": given.actor,
        "token": given.token, "token_key": given.token_key, "is_checked": given.is_checked, "problem": given.problem,
    }  # fmt: skip


async def admit_patiently(
    db: Database, given: Sequence[Given], *, at_most_ms: int | None = None
) -> tuple[list[Verdict | None], Settled]:
    """Judge answers, no question twice, waiting for whoever holds their instances; a Contention beyond that time."""
    ids = sorted({g.found.instance_id for g in given})
    answers = _encoded(enumerate(given))  # before anybody is locked out by it
    async with db.transaction() as session:
        if at_most_ms is None:
            await operators.lock(session, ids)
        else:
            await session.fetch("interactions/lock", ids, f"{at_most_ms}ms")
        return await _admit(session, len(given), answers)


def _encoded(ready: Iterable[tuple[int, Given]]) -> str:
    return _ENCODER.encode([_judged(place, given) for place, given in ready]).decode()


async def _admit(session: Session, number: int, answers: str) -> tuple[list[Verdict | None], Settled]:
    """Judge answers whose instances are locked; of so many in all, by their places."""
    verdicts: list[Verdict | None] = [None] * number
    numbers, returned, going = Counter[int](), Counter[int](), Counter[int]()
    queues: set[str] = set()
    for place, verdict, problem, status, unit_id, was_out, continues_in in await session.fetch(
        "interactions/admit", answers
    ):
        verdicts[place] = Verdict(verdict, problem, status)
        if verdict == "admitted":
            numbers[unit_id] += 1
            returned[unit_id] += was_out
            if continues_in is not None:
                going[unit_id] += 1
                queues.add(continues_in)
    settled = await units.settle(
        session, [Resolved(u, n, returned[u], continues=going[u]) for u, n in sorted(numbers.items())]
    )
    return verdicts, msgspec.structs.replace(settled, queues=[*settled.queues, *queues])


async def expire(db: Database) -> tuple[int, int, Settled]:
    """End questions whose time is over; returns how many there were, how many of them are held by somebody else, and
    what goes on by it. What is held is looked past: it is in nobody's way."""
    number, held, after = 0, 0, BEFORE_ALL
    while True:
        late = await db.fetch("interactions/find_late", *after)
        if not late:
            return number, held, Settled()
        ended, settled = await _expire(db, [(row["id"], row["instance_id"]) for row in late])
        number, held = number + len(late), held + len(late) - ended
        after = late[-1]["deadline"], late[-1]["id"]
        if ended or len(late) < FULL_LOOK:
            return number, held, settled


async def _expire(db: Database, late: list[tuple[str, int]]) -> tuple[int, Settled]:
    """End those of the questions whose instance nobody holds; returns how many these are."""
    async with db.transaction() as session:
        locked = await children.lock_parents(session, sorted({instance for _, instance in late}))
        ids = [id_ for id_, instance in late if instance in locked]
        rows = await session.fetch("interactions/expire", ids) if ids else []
        resolved = [Resolved(unit, number, number, "timed_out") for unit, number in rows]
        return len(ids), await units.settle(session, resolved)


async def claim(
    db: Queryable, worker_id: int, transport: str, limit: int, *, has_keys: bool = True
) -> list[Outgoing]:
    """Take questions to send them; without keys only such that need no token."""
    rows = await db.fetch("interactions/claim", worker_id, transport, limit, has_keys)
    return [_outgoing(dict(row)) for row in rows]


async def has_guarded(db: Queryable, transport: str) -> bool:
    """Whether a question that needs a token is to be sent."""
    [row] = await db.fetch("interactions/has_guarded", transport)
    return bool(row["is_there"])


async def record(db: Queryable, worker_id: int, sent: Sequence[Sent]) -> list[Sent]:
    """Note how sendings ended; returns those that could not be noted, because somebody holds the question."""
    rows = await db.fetch(
        "interactions/record", worker_id, [s.id for s in sent], [s.attempt for s in sent], [s.delay for s in sent],
        [s.metadata for s in sent], [s.error for s in sent],
    )  # fmt: skip
    noted = {row["id"] for row in rows if row["is_noted"]}
    held = {row["id"] for row in rows} - noted
    return [s for s in sent if s.id in held]


Lost: TypeAlias = tuple[Dispatch, str]
"""A question that can never be sent, and why."""


async def fail(db: Database, worker_id: int, lost: Sequence[Lost]) -> tuple[list[Lost], Settled]:
    """End questions that can never be sent; returns those whose instance somebody else holds, and what goes on."""
    async with db.transaction() as session:
        locked = await children.lock_parents(session, sorted({dispatch.instance_id for dispatch, _ in lost}))
        ready = [(dispatch, why) for dispatch, why in lost if dispatch.instance_id in locked]
        rows = await session.fetch(
            "interactions/fail", worker_id, [d.interaction_id for d, _ in ready], [d.attempt for d, _ in ready],
            [why for _, why in ready],
        )  # fmt: skip
        settled = await units.settle(session, [Resolved(unit, number, number, "failed") for unit, number in rows])
    return [one for one in lost if one[0].instance_id not in locked], settled


async def seal(db: Queryable, interaction_id: str, seal_: str) -> None:
    """Keep the hash of the token of a question."""
    await db.fetch("interactions/seal", interaction_id, seal_)


async def seal_taken(db: Queryable, worker_id: int, seals: Mapping[str, str]) -> set[str]:
    """Keep the hashes of tokens of questions that this worker has taken; returns those that nobody else holds."""
    return {row["id"] for row in await db.fetch("interactions/seal_taken", worker_id, [*seals], [*seals.values()])}


async def give_back(db: Queryable, worker_id: int, transport: str, kept: Collection[str]) -> int:
    """Let questions be sent again that this worker has taken, but for those; returns how many."""
    return len(await db.fetch("interactions/give_back", worker_id, transport, list(kept)))


async def return_lost(db: Queryable) -> list[str]:
    """Let questions be sent again whose sender is dead; returns their transports."""
    return [row["transport"] for row in await db.fetch("interactions/return_lost")]


async def read(db: Queryable, tenant: str, ids: Sequence[str]) -> list[tuple[Interaction, Found]]:
    """Questions of a tenant, in the order of the ids; as people see them, and as who answers them finds them."""
    rows = await db.fetch("interactions/read", ids, tenant)
    read = {row["id"]: _seen_and_found(dict(row)) for row in rows}
    return [read[id_] for id_ in ids if id_ in read]


async def pending(
    db: Database, tenant: str, filters: Sequence[object], limit: int, after: str | None
) -> list[tuple[str, str]]:
    """Ids of open questions, each with the cursor behind it. Filters: assignee, group, machine, step, transport,
    overdue; None lets all pass."""
    async with db.transaction(anew=True) as session:
        rows = await session.fetch("interactions/pending", tenant, *filters, limit, after)
    return [(row["id"], row["cursor"]) for row in rows]


def _decoded(fields: dict[str, Any], names: Sequence[str], read: Callable[[str], Any] = decode_value) -> dict[str, Any]:
    return fields | {name: None if fields[name] is None else read(fields[name]) for name in names}


def _outgoing(row: dict[str, Any]) -> Outgoing:
    requires_token = row.pop("requires_token")
    return Outgoing(Dispatch(**_decoded(row, ("request", "reply_schema"))), requires_token)


def _seen_and_found(row: dict[str, Any]) -> tuple[Interaction, Found]:
    reference = row.pop("reference")
    fields = _decoded(row, ("request", "reply", "reply_schema", "metadata"))
    seen = Interaction(**{**fields, "status": InteractionStatus(fields["status"])})
    return seen, Found(seen.id, seen.unit_id, seen.instance_id, seen.machine, seen.version, seen.step, reference)
