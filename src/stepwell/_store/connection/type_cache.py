"""Caches the driver's type queries: the built-in types of Postgres are queried once per process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import asyncpg

# Oids below this are assigned by hand: they mean the same type in every database of every version.
_ASSIGNED_BY_HAND: Final = 10_000
# Tells the driver that no unnamed statement was sent.
_NOTHING_SENT: Final = SimpleNamespace(name="nothing")

_known: dict[frozenset[int], Any] = {}


class LearnedConnection(asyncpg.Connection):
    """A connection that shares the type information of all connections in this process.

    The driver queries the catalog when it first sees a type on a connection. That takes the server about 15 ms: more
    than everything else that a new connection costs.
    """

    async def _introspect_types(self, typeoids: Any, *args: Any) -> Any:
        asked = frozenset(typeoids)
        if asked in _known:
            return _known[asked], _NOTHING_SENT
        answer = await super()._introspect_types(typeoids, *args)  # type: ignore[misc]  # the stubs omit it
        if all(oid < _ASSIGNED_BY_HAND for oid in asked):
            _known[asked] = answer[0]
        return answer
