"""Claim rows of one queue for a worker. `claim` chooses the statement:

| condition | statement |
|---|---|
| the queue is fair | `fair_queues/claim`: tenants take turns |
| the last rows needed slots of limits, no backoff | `limits/claim_fast`: claims rows with a slot, holds the others |
| the last rows needed only a worker; the caller can start all | `instances/claim_started_fast`: marks them started |
| the last rows needed only a worker | `instances/claim_fast` |
| anything else, or a fast statement claimed nothing | `instances/claim`: returns what each row of the window needs |

A fast statement claims nothing if a row of its window needs more: less urgent rows would overtake that row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum
from operator import itemgetter
from typing import Any

import msgspec

from stepwell._core.instance import Claim
from stepwell._core.limits.requirement import LimitRequirement
from stepwell._core.store_errors import Refusal
from stepwell._store.await_units import StoredAwaitUnit
from stepwell._store.connection.pool import Queryable, Row
from stepwell._store.limits import Held
from stepwell._store.operations.fast_path_backoff import FastPathBackoff
from stepwell._store.registrations.workers import StartedClaims
from stepwell._store.signals import read_inbox
from stepwell.errors import InvalidPayload

MOST_STARTED = 32  # rows that one claim marks started: each step waits until all of them are committed

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # the server's timestamps count from here
_URGENCY = itemgetter("priority", "due_at", "id")  # the order of the index, most urgent first
_UNIT = msgspec.json.Decoder(StoredAwaitUnit)


class ClaimRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to claim. `turns`: for a fair queue, the share after which each priority continues; else `first_share`."""

    worker_id: int
    queue: str
    limit: int
    labels: Sequence[str]  # name@version: the versions that the worker runs
    passed_over: Sequence[str] = ()  # labels that other workers run
    may_start: bool = False  # each claimed row has a free slot, and no other claim of the worker is starting
    turns: Mapping[int, int] | None = None
    first_share: int = 0


class KeyHolder(msgspec.Struct, frozen=True):
    """A row in the window of a claim statement that was not claimed."""

    id: int
    label: str  # name@version
    concurrency_key: str | None
    priority: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """The window of a claim: claims, and rows with busy concurrency keys, unknown versions, or limit requirements."""

    claims: list[Claim]
    busy: list[KeyHolder]
    foreign: list[KeyHolder]
    missed: bool  # other transactions locked or changed some rows: claim again
    limited: list[KeyHolder]
    begun: StartedClaims | None = None  # set if the claims are marked started: the inputs of their steps
    held: Sequence[Held] = ()  # rows put on hold, as their limit had no free slot
    turned: Mapping[int, int] | None = None  # for a fair queue: the share after which each priority continues
    limit: int = 0  # rows requested
    is_simple: bool = False  # every row of the window needed only a worker; unknown for a fair queue

    @property
    def window(self) -> int:
        """The number of rows in the window."""
        return len(self.claims) + len(self.busy) + len(self.foreign) + len(self.limited) + len(self.held)

    @property
    def last_priority(self) -> int | None:
        """The priority of the least urgent row of the window; None if the window was empty."""
        parts: tuple[Sequence[Claim | KeyHolder | Held], ...] = (
            self.claims, self.busy, self.foreign, self.limited, self.held,
        )  # fmt: skip
        return max((rows[-1].priority for rows in parts if rows), default=None)

    @property
    def is_by_limits(self) -> bool:
        """Whether limits admitted these claims, or hold these rows. (Either all claims need limits, or none.)"""
        return bool(self.held or (self.claims and self.claims[0].needs is not None))

    @property
    def needs_limits(self) -> bool:
        """Whether some row of the window needs limits."""
        return bool(self.limited) or self.is_by_limits


class _Needs(Enum):
    """The requirements of the rows in a queue's last window."""

    WORKER = "worker"
    LIMITS = "limits"
    MORE = "more"


class ClaimPaths:
    """The results of a worker's earlier claims, by queue. Only `claim` reads and writes them."""

    def __init__(self) -> None:
        self.needs: dict[str, _Needs] = {}
        self.limits_backoff = FastPathBackoff[str]()

    def note(self, queue: str, claimed: Claimed) -> None:
        """Remember the requirements of the rows in a window, unless it was empty."""
        if claimed.window:
            simple = _Needs.WORKER if claimed.is_simple else _Needs.MORE
            self.needs[queue] = _Needs.LIMITS if claimed.needs_limits else simple


async def claim(db: Queryable, request: ClaimRequest, paths: ClaimPaths) -> Claimed:
    """Claim up to `limit` rows, most urgent first; Conflict if another worker claimed the same concurrency key."""
    needs = paths.needs.get(request.queue, _Needs.WORKER)
    if request.turns is not None:
        claimed = await claim_fair(db, request)
    elif needs is _Needs.LIMITS and (admitted := await _claim_by_limits(db, request, paths.limits_backoff)) is not None:
        return admitted
    elif needs is _Needs.WORKER:
        if request.may_start and request.limit > MOST_STARTED:
            request = msgspec.structs.replace(request, limit=MOST_STARTED)
        try:
            claimed = await (claim_started_fast if request.may_start else claim_fast)(db, request)
        except Refusal:  # the rows' texts are too large for one reply: the full path reads them separately
            if not request.may_start:
                raise
        else:
            if claimed.claims:
                return claimed
        claimed = await claim_full(db, request)
    else:
        claimed = await claim_full(db, request)
    paths.note(request.queue, claimed)
    return claimed


async def _claim_by_limits(db: Queryable, request: ClaimRequest, backoff: FastPathBackoff[str]) -> Claimed | None:
    """Claim rows that need only slots of limits; None if the full path must read the window."""
    if backoff.has(request.queue):
        return None
    claimed = await claim_slots(db, request)
    if claimed is None or (claimed.missed and not claimed.window):
        backoff.add([request.queue])
        return None
    backoff.drop([request.queue])
    return claimed


async def claim_full(db: Queryable, request: ClaimRequest) -> Claimed:
    """Claim rows of any kind; also returns what the other rows of the window wait for."""
    r = request
    rows = await db.fetch("instances/claim", r.worker_id, r.queue, r.limit, r.labels, r.passed_over)
    claims, others = _read_full(rows, request)
    is_missed = bool(others.pop("missed"))
    is_simple = not any(others.values()) and all(claim.concurrency_key is None for claim in claims)
    return Claimed(claims, others["busy"], others["foreign"], is_missed, others["limited"], limit=r.limit,
                   is_simple=is_simple)


async def claim_fair(db: Queryable, request: ClaimRequest) -> Claimed:
    """Claim share by share; returns the claims in the order in which they run."""
    r = request
    turns = r.turns or {}
    rows = await db.fetch(
        "fair_queues/claim", r.worker_id, r.queue, r.limit, r.labels, r.passed_over, [*turns], [*turns.values()],
        r.first_share,
    )  # fmt: skip
    turned = {row["priority"]: row["id"] for row in rows if row["verdict"] == "turn"}
    claims, others = _read_full([row for row in rows if row["verdict"] != "turn"], request)
    return Claimed(claims, others["busy"], others["foreign"], bool(others["missed"]), others["limited"],
                   turned=turned, limit=r.limit)


def _read_full(rows: Sequence[Row], request: ClaimRequest) -> tuple[list[Claim], dict[str, list[KeyHolder]]]:
    """The rows of claim_full and claim_fair: claims, and the others by verdict."""
    worker_id, queue = request.worker_id, request.queue
    claims: list[Claim] = []
    others: dict[str, list[KeyHolder]] = {"busy": [], "foreign": [], "limited": [], "missed": []}
    claimed_at: Any = next((row["claimed_at"] for row in rows if row["claimed_at"] is not None), None)
    for (
        verdict, id_, machine, version, key, fence, step, attempt, crashes, tenant, business_key, _,
        has_inbox, awaits, parent_id, round_, priority, unit_id,
    ) in rows:  # fmt: skip
        if verdict == "claimed":
            claims.append(
                Claim(id_, worker_id, fence, machine, version, step, attempt, crashes, tenant, business_key, key,
                      queue, claimed_at, has_inbox, tuple(awaits) if awaits else (), parent_id, round_, priority, None,
                      unit_id)
            )  # fmt: skip
        else:
            others[verdict].append(KeyHolder(id_, f"{machine}@{version}", key, priority))
    return claims, others


async def claim_fast(db: Queryable, request: ClaimRequest) -> Claimed:
    """Claim rows that need only a worker; none if a row of the window needs more."""
    r = request
    rows = await db.fetch("instances/claim_fast", r.worker_id, r.queue, r.limit, r.labels, r.passed_over)
    rows.sort(key=_URGENCY)
    claims = _read_simple(rows, request)
    is_missed = not rows or rows[0]["looked_at"] > len(claims)
    return Claimed(claims, [], [], is_missed, [], limit=r.limit, is_simple=True)


async def claim_started_fast(db: Queryable, request: ClaimRequest) -> Claimed:
    """Claim as claim_fast does, and mark the claims started. Without `begun` in the result, the caller must mark them
    started, or load their inputs."""
    r = request
    rows = await db.fetch("instances/claim_started_fast", r.worker_id, r.queue, r.limit, r.labels, r.passed_over)
    claims = _read_simple(rows, request)
    is_missed = bool(rows) and rows[0]["looked_at"] > len(claims)
    return Claimed(claims, [], [], is_missed, [], begun=_begun(rows, claims), limit=r.limit,
                   is_simple=True)


def _read_simple(rows: Sequence[Row], request: ClaimRequest) -> list[Claim]:
    if not rows:
        return []
    worker_id, queue = request.worker_id, request.queue
    claimed_at = _EPOCH + timedelta(microseconds=int.from_bytes(rows[0]["claimed_at"], "big"))
    return [
        Claim(id_, worker_id, fence, machine, version, step, attempt, crashes, tenant, key, None, queue, claimed_at,
              has_inbox, tuple(awaits) if awaits else (), parent_id, round_, priority, None, unit_id)
        for (
            _, _, id_, fence, machine, version, step, attempt, crashes, tenant, key, has_inbox, awaits, parent_id,
            round_, priority, unit_id, *_,
        ) in rows
    ]  # fmt: skip


def _begun(rows: Sequence[Row], claims: Sequence[Claim]) -> StartedClaims | None:
    """The inputs of the claims; None if the lease has ended, or an input is missing or cannot be decoded."""
    if not rows or not rows[0]["is_held"]:
        return None
    begun = StartedClaims({row["id"]: row["state"] for row in rows},
                          frozenset(row["id"] for row in rows if row["unchecked"]))
    try:
        for row, claim in zip(rows, claims, strict=True):
            inbox, unit = row["inbox"], row["unit"]
            if claim.round or (claim.has_inbox and inbox is None) or (claim.unit_id is not None and unit is None):
                return None
            if inbox is not None:
                begun.inboxes[claim.id] = read_inbox(inbox)
            if unit is not None:
                begun.units[claim.id] = _UNIT.decode(unit)
    except (InvalidPayload, msgspec.DecodeError):
        return None
    return begun


async def claim_slots(db: Queryable, request: ClaimRequest) -> Claimed | None:
    """Claim rows with a free slot of their limit, and put the others on hold; None if a row of the window needs
    anything else. The claims are durable once they are marked started."""
    r = request
    rows = await db.fetch("limits/claim_fast", r.worker_id, r.queue, r.limit, r.labels, r.passed_over)
    if rows and rows[0]["verdict"] == "mixed":
        return None
    claims = [_read_slot(row, r.worker_id, r.queue) for row in rows if row["verdict"] == "claimed"]
    held = [Held.of(row) for row in rows if row["verdict"] == "held"]
    is_missed = any(row["verdict"] == "missed" for row in rows)
    return Claimed(claims, [], [], is_missed, [], held=held, limit=r.limit)


def _read_slot(row: Row, worker_id: int, queue: str) -> Claim:
    return Claim(
        row["id"], worker_id, row["fence"], row["machine"], row["version"], row["step"], row["attempt"],
        row["crashes"], row["tenant"], row["key"], None, queue, row["claimed_at"], row["has_inbox"],
        tuple(row["awaits"] or ()), row["parent_id"], row["round"], row["priority"],
        LimitRequirement(row["concurrency_limit"], row["own_limit"], None, row["weight"]), row["await_unit_id"],
    )  # fmt: skip
