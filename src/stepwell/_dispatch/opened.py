"""A transport that the workers of an engine share."""

from __future__ import annotations

import asyncio

from stepwell.transports import Transport


class Opened:
    """A shared transport: its first user opens it, and its last user closes it."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._users: set[object] = set()
        self._opening = asyncio.Lock()

    async def ensure(self, user: object) -> None:
        """Open the transport unless it is open; a user counts once."""
        if user not in self._users:
            async with self._opening:
                if not self._users:
                    await self.transport.open()
                self._users.add(user)

    async def close(self, user: object) -> None:
        """Remove this user; the last one closes the transport."""
        async with self._opening:
            if user in self._users:
                self._users.remove(user)
                if not self._users:
                    await self.transport.close()
