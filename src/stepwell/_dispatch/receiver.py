"""Receives completions over one transport."""

from __future__ import annotations

import asyncio

from stepwell._dispatch.opened import Opened
from stepwell._dispatch.sending import is_cancelled_by_engine
from stepwell._lease.lease import Lease
from stepwell._process.outages import ONCE
from stepwell._process.service import Service
from stepwell.errors import SendFailed
from stepwell.transports import Admit


class Receiver(Service):
    """The receiving side of one transport: runs `receive`, and starts it again when it fails."""

    def __init__(self, opened: Opened, lease: Lease, admit: Admit) -> None:
        super().__init__(f"receiver of {opened.transport.name}")
        self._party = ONCE  # a successful receive does not end its tick
        self._opened = opened
        self._lease = lease
        self._admit = admit

    async def tick(self) -> float | None:
        """Receive in a separate task: up to Python 3.12 a TaskGroup that fails leaves its task half cancelled."""
        await self._opened.ensure(self._lease)
        try:
            await asyncio.create_task(self._receive(), name=f"stepwell {self.name}")
        except asyncio.CancelledError as error:
            if is_cancelled_by_engine(error):
                raise
            raise SendFailed("receiving was cancelled, and not by the engine") from error
        return None

    async def _receive(self) -> None:
        await self._opened.transport.receive(self._admit)

    async def stop(self) -> None:
        """Cancel at once: receiving does not end by itself."""
        if self._task is not None:
            self._is_cutting = True
            self._task.cancel()
        await super().stop()
