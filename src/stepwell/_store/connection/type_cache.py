"""What the driver asks a server about types: of those that Postgres itself brings along, once per process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import asyncpg

# Numbers below this were given by hand, once for all: in every database of every version they mean the same type.
_ASSIGNED_BY_HAND: Final = 10_000
# To the driver's question whether a statement without a name was sent: none was.
_NOTHING_SENT: Final = SimpleNamespace(name="nothing")

_known: dict[frozenset[int], Any] = {}


class LearnedConnection(asyncpg.Connection):
    """A connection that knows what others of this process were told.

    The driver asks when it first meets a type on a connection, by a statement over the catalog that costs the server
    some 15 ms: more than all else that a new connection costs.
    """

    async def _introspect_types(self, typeoids: Any, *args: Any) -> Any:
        asked = frozenset(typeoids)
        if asked in _known:
            return _known[asked], _NOTHING_SENT
        answer = await super()._introspect_types(typeoids, *args)  # type: ignore[misc]  # the stubs leave it out
        if all(oid < _ASSIGNED_BY_HAND for oid in asked):
            _known[asked] = answer[0]
        return answer
