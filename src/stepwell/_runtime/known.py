"""Questions that were read in this process: who answers one of them need not look it up, for it never changes."""

from __future__ import annotations

from collections.abc import Iterable

from stepwell._core.replies import is_projected
from stepwell._store.interactions import Found

MOST_KNOWN = 10_000


class Known:
    """What questions ask for, by tenant and id; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], Found] = {}

    def note(self, tenant: str, found: Iterable[Found]) -> None:
        """Remember questions; but for those whose replies a projector makes: it needs more than is read."""
        self._found |= {(tenant, one.id): one for one in found if not is_projected(one.reference)}
        while len(self._found) > MOST_KNOWN:
            del self._found[next(iter(self._found))]

    def pop(self, id_: str | None, correlation: str | None, tenant: str) -> Found | None:
        """A question that is named by its id alone, if it is known; it is not any more."""
        return None if id_ is None or correlation is not None else self._found.pop((tenant, id_), None)
