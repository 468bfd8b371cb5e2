"""Loads the inputs of steps beside their states: inboxes, children, replies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from stepwell._core.instance import Child, Claim, Signal
from stepwell._store import await_units, children, signals
from stepwell._store.await_units import StoredAwaitUnit
from stepwell._store.connection.pool import Database
from stepwell._worker.active_claims import Read
from stepwell.errors import InvalidPayload

T = TypeVar("T")


class Inputs:
    """The inputs of steps beside their states, by instance."""

    __slots__ = ("families", "inboxes", "units", "unreadable")

    def __init__(
        self, inboxes: dict[int, tuple[Signal, ...]] | None = None, units: dict[int, StoredAwaitUnit] | None = None
    ) -> None:
        self.inboxes = inboxes or {}
        self.families: dict[int, tuple[Child, ...]] = {}
        self.units = units or {}
        self.unreadable: dict[int, InvalidPayload] = {}

    def beside(self, id_: int, state: str, unchecked: bool) -> Read:
        """The inputs of one instance, with its state."""
        return Read(
            state, None, unchecked, self.inboxes.get(id_, ()), self.families.get(id_, ()),
            self.units.get(id_), self.unreadable.get(id_),
        )  # fmt: skip


async def load(db: Database, claims: list[Claim]) -> Inputs:
    """Load only the inputs that the flags of the rows announce: a plain step costs no extra statement."""
    loaded = Inputs()
    receivers = [claim.id for claim in claims if claim.has_inbox]
    loaded.inboxes = await _isolating(lambda ids: signals.load(db, ids), receivers, loaded.unreadable)
    rounds = {claim.id: claim.round for claim in claims if claim.round}
    loaded.families = await _isolating(
        lambda ids: children.load(db, {i: rounds[i] for i in ids}), [*rounds], loaded.unreadable
    )
    asked = {claim.id: claim.unit_id for claim in claims if claim.unit_id is not None}
    if asked:
        found = await await_units.load(db, [*asked.values()])
        loaded.units = {id_: found[unit_id] for id_, unit_id in asked.items() if unit_id in found}
    return loaded


async def _isolating(
    load: Callable[[list[int]], Awaitable[dict[int, T]]], ids: list[int], unreadable: dict[int, InvalidPayload]
) -> dict[int, T]:
    """Load values for these instances. Only an instance with unreadable data is left out; its error is kept."""
    if not ids:
        return {}
    try:
        return await load(ids)
    except InvalidPayload as error:
        if len(ids) == 1:
            unreadable[ids[0]] = error
            return {}
    found: dict[int, T] = {}
    for id_ in ids:
        found |= await _isolating(load, [id_], unreadable)
    return found
