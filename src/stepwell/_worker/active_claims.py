"""The active claims of a worker, each from its arrival until its last commit is confirmed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Any

import msgspec

from stepwell._core.instance import Child, Claim, Signal
from stepwell._store.await_units import StoredAwaitUnit
from stepwell.errors import InvalidPayload


class Read(msgspec.Struct, frozen=True, gc=False):
    """The inputs of a step, read before it starts."""

    state: str
    decoded: Any = None  # the state, decoded, if the previous step ran in this worker and committed it
    unchecked: bool = False  # the state came from SQL, and no type has checked it yet
    inbox: tuple[Signal, ...] = ()
    children: tuple[Child, ...] = ()
    unit: StoredAwaitUnit | None = None  # the await unit that the step continues from, with its replies
    unreadable: InvalidPayload | None = None  # a signal, or a child's state or result, that Python cannot decode


class Stage(Enum):
    """How far the outcome of a claim has come.

        OPEN -> SUBMITTED -> the claim ends
        OPEN -> CONTINUES -> OPEN, under the next fence (run-ahead)
        OPEN -> SUBMITTED -> COMMITTED (transactional steps), or OPEN again if their transaction is rolled back

    - OPEN: there is no outcome yet. If the claim is lost, its step is stopped.
    - SUBMITTED: the committer has the outcome. From here on the fence decides whether it is committed.
    - CONTINUES: as SUBMITTED, and the commit keeps the row claimed by this worker.
    - COMMITTED: the step's own transaction is committed. Its task only returns the connection, and is not cancelled.
    """

    OPEN = "open"
    SUBMITTED = "submitted"
    CONTINUES = "continues"
    COMMITTED = "committed"


OPEN, SUBMITTED, CONTINUES, COMMITTED = Stage  # reading a member from the class is five times slower


class ActiveClaim(msgspec.Struct, eq=False, weakref=True):
    """One claim of this worker, the task that runs its step, and the stage of its outcome."""

    claim: Claim
    task: asyncio.Task[None] | None = None  # runs its step, and maybe steps of other claims afterwards
    free_slot: Callable[[Claim], None] | None = None  # frees its slot in its queue
    steps_ahead: int = 0  # steps that ran on this claim after its first step
    stage: Stage = OPEN
    revoked: bool = False  # an operator took the row after its outcome was submitted
    is_pending: bool = False  # no task runs it: it waits for its start or for the reply to its commit
    pending_end: asyncio.Future[None] | None = None  # ends with `is_pending`; a drain waits for it
    shares_task: bool = False  # other steps ran in its task before
    was_cancelled: bool = False  # its task was cancelled, by its step or by other code
    abandoned: bool = False  # the claim is lost or given up; the outcome of its step is dropped

    def begin(self, task: asyncio.Task[None], *, shares: bool = False) -> None:
        """Note that its step runs now, in this task."""
        claim = self.claim
        task.set_name(f"{claim.machine} #{claim.id}")
        self.task, self.shares_task = task, shares
        self.end_pending()

    def continue_as(self, claim: Claim) -> None:
        """Hold the same row under its next claim."""
        self.claim = claim
        self.steps_ahead += 1
        self.stage = OPEN

    def leave_slot(self) -> None:
        """Free its slot: its step has returned, or does not run."""
        free, self.free_slot = self.free_slot, None
        if free is not None:
            free(self.claim)

    @property
    def under_way(self) -> asyncio.Future[None] | None:
        """The future of its task, or of its pending start or commit; None if the claim has ended."""
        if self.task is not None and not self.task.done():
            return self.task
        if self.is_pending and self.pending_end is None:
            self.pending_end = asyncio.get_running_loop().create_future()
        return self.pending_end

    def end_pending(self) -> None:
        """Note that it waits no longer; a drain that waits for it continues."""
        self.is_pending = False
        if self.pending_end is not None:
            self.pending_end.set_result(None)
            self.pending_end = None

    def holds(self, fence: int) -> bool:
        """Whether the claim has this fence; in CONTINUES, the row may have the next one already."""
        return self.claim.fence == fence or (self.stage is CONTINUES and self.claim.fence + 1 == fence)

    def abandon(self, why: str) -> None:
        """Give up the claim: cancel its step with this reason. Does nothing once the step is committed."""
        if self.stage is COMMITTED:
            return
        self.abandoned = True
        self.end_pending()
        if self.task is not None:
            self.task.cancel(why)
        else:
            self.leave_slot()


class ActiveClaims:
    """Claims by instance id. Only the main loop adds and drops them. The heartbeat's thread reads them, and
    releases rows with claims that never arrived: of a late reply and that release, the first one counts."""

    def __init__(self) -> None:
        self._active_claims: dict[int, ActiveClaim] = {}
        self._given_back: dict[int, int] = {}  # instance to fence
        self._arriving = threading.Lock()

    def __len__(self) -> int:
        return len(self._active_claims)

    def add(self, claims: Iterable[Claim]) -> list[Claim]:
        """Add claims; returns those that were not released before the reply arrived. An older claim of the same
        instance is lost: stop its step."""
        active_claims, given_back, taken = self._active_claims, self._given_back, []
        with self._arriving:
            for claim in claims:
                if given_back and given_back.pop(claim.id, None) == claim.fence:
                    continue
                older = active_claims.get(claim.id)
                if older is not None and older.stage is OPEN:
                    older.abandon("the claim of this step is lost")
                active_claims[claim.id] = ActiveClaim(claim)
                taken.append(claim)
        return taken

    def give_back(self, claims: Mapping[int, int]) -> list[int]:
        """Find which of these claims (instance to fence) never arrived; `add` refuses them from now on."""
        with self._arriving:
            missing = {i: fence for i, fence in claims.items() if not self._holds(i, fence)}
            self._given_back |= missing
            return sorted(missing)

    def _holds(self, instance_id: int, fence: int) -> bool:
        active = self._active_claims.get(instance_id)
        return active is not None and active.holds(fence)

    def drop(self, claim: Claim) -> None:
        """Drop a claim; a newer claim of the same instance stays."""
        active = self._active_claims.get(claim.id)
        if active is not None and active.holds(claim.fence):
            del self._active_claims[claim.id]

    def get(self, instance_id: int) -> ActiveClaim | None:
        return self._active_claims.get(instance_id)

    def ids(self) -> frozenset[int]:
        return frozenset(self._active_claims.copy())

    def all(self) -> list[ActiveClaim]:
        return list(self._active_claims.values())

    def under_way(self) -> list[asyncio.Future[None]]:
        """Futures of all claims that have not ended."""
        return [waits for active in self.all() if (waits := active.under_way) is not None]

    def abandon(self, instance_ids: Iterable[int], why: str) -> int:
        """Give up these claims; returns how many were active."""
        found = [active for i in instance_ids if (active := self._active_claims.get(i)) is not None]
        for active in found:
            del self._active_claims[active.claim.id]
            active.abandon(why)
        return len(found)
