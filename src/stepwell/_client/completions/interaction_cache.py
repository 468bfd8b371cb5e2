"""A cache of interactions that this process has read: completing one of them needs no lookup. They never change."""

from __future__ import annotations

from collections.abc import Iterable

from stepwell._core.serialization.reply_type import is_projected
from stepwell._store.interactions import Found

MOST_KNOWN = 10_000


class InteractionCache:
    """Interactions by tenant and id; the oldest entries are dropped first."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Found] = {}

    def note(self, tenant: str, found: Iterable[Found]) -> None:
        """Cache interactions, other than those with a projector: it needs more columns than are read here."""
        self._found |= {(tenant, one.id): one for one in found if not is_projected(one.reference)}
        while len(self._found) > MOST_KNOWN:
            del self._found[next(iter(self._found))]

    def pop(self, id_: str | None, correlation: str | None, tenant: str) -> Found | None:
        """Remove and return an interaction that is named by its id alone; None if it is not cached."""
        return None if id_ is None or correlation is not None else self._found.pop((tenant, id_), None)
