"""Sends interactions over one transport: claims them, sends them, records the result. At least once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta

from msgspec.structs import replace

from stepwell._core.interaction import Dispatch, epoch_ms
from stepwell._core.resume_token import TokenFacts, TokenKeys, token_hash
from stepwell._core.store_errors import StoreFault
from stepwell._dispatch.claimed_interactions import ClaimedInteractions
from stepwell._dispatch.opened import Opened
from stepwell._dispatch.sending import send
from stepwell._lease.lease import Lease
from stepwell._process import probes
from stepwell._process.service import Service
from stepwell._store import interactions
from stepwell._store.await_units import Settled
from stepwell._store.connection.pool import Database
from stepwell._store.interactions import Outgoing, Sent

log = logging.getLogger("stepwell")

HELD_PAUSE = 0.05  # seconds until a result is recorded again after its row was locked
CANCEL_TIMEOUT = 1.0


class Dispatcher(Service):
    """The sending side of one transport in one worker. Its failures affect no other transport."""

    def __init__(
        self,
        opened: Opened,
        *,
        database: Database,
        lease: Lease,
        token_keys: TokenKeys,
        settled: Callable[[Settled], None],
        expect_due: Callable[[float], None],
    ) -> None:
        self.transport = opened.transport
        super().__init__(f"dispatcher of {self.transport.name}")
        self._opened = opened
        self._database = database
        self._lease = lease
        self._token_keys = token_keys
        self.claimed = ClaimedInteractions(self.transport.name, database, lease, settled, expect_due)
        self._sending: set[asyncio.Task[None]] = set()
        self._is_in_doubt = False  # the reply to a claim may be lost: rows may be claimed without this worker knowing
        self._is_draining = False
        self._has_due = False  # the timers say that interactions are to be sent
        self._leaves_guarded = False  # some interactions need a token, and this engine has no keys to sign it

    def wake_for_due(self) -> None:
        """The timers found interactions that wait to be sent."""
        self._has_due = True
        self.wake()

    async def tick(self) -> float | None:
        await self.claimed.record()
        if self._is_in_doubt:
            await self.claimed.release(self.claimed.unrecorded)
            self._is_in_doubt = False
        later = HELD_PAUSE if self.claimed.has_results else None
        room = self.transport.max_in_flight - len(self._sending)
        if room <= 0 or self._is_draining or not self._lease.is_held:
            return later
        await self._opened.ensure(self._lease)
        self._is_in_doubt = True  # until the claimed rows are known: the reply may be lost
        claimed = await interactions.claim(
            self._database, self._lease.worker_id, self.transport.name, room, has_keys=not self._token_keys.is_empty
        )
        if probes.hooks and claimed:
            await probes.reach("dispatcher.claimed", ids=[out.dispatch.interaction_id for out in claimed])
        for dispatch in await self._with_tokens(claimed):
            self.claimed.unrecorded.add(dispatch.interaction_id)
            task = asyncio.create_task(self._send(dispatch), name=f"stepwell send {dispatch.interaction_id}")
            self._sending.add(task)
            task.add_done_callback(self._ended)
        self._is_in_doubt = False
        if self._has_due and not claimed:
            await self._look_for_guarded()
        self._has_due = False
        return 0.0 if len(claimed) == room else later

    async def _look_for_guarded(self) -> None:
        """Log, once, that there are interactions which only a worker with keys can send."""
        if self._token_keys.is_empty and not self._leaves_guarded:
            self._leaves_guarded = await interactions.has_guarded(self._database, self.transport.name)
            if self._leaves_guarded:
                log.warning("%s: interactions that need a token wait for a worker with token_keys; this one has none",
                            self.name)  # fmt: skip

    async def drain(self, timeout: float) -> None:
        """Claim no more; wait for running sends and record them. Release the rest, for other workers to send."""
        self._is_draining = True
        await self.stop()
        with suppress(StoreFault):  # an interaction that could not be recorded is sent again
            await self._wait_for_sendings(timeout)
            await self.claimed.record()
        for task in self._sending:
            task.cancel("the worker stops")
        if self._sending:
            await asyncio.wait(self._sending, timeout=CANCEL_TIMEOUT)
        with suppress(StoreFault):
            await self.claimed.release(())

    async def _wait_for_sendings(self, timeout: float) -> None:
        until = asyncio.get_running_loop().time() + timeout
        while self._sending and (left := until - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(self._sending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            await self.claimed.record()

    async def _send(self, dispatch: Dispatch) -> None:
        self.claimed.note(await send(self.transport, dispatch))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self.wake()

    async def _with_tokens(self, claimed: list[Outgoing]) -> list[Dispatch]:
        """Sign the tokens, and store their hashes before any token is sent.

        An interaction that is being completed now is locked and gets no hash: it is sent a moment later, if still open.
        """
        signed = {
            out.dispatch.interaction_id: self._token_keys.sign(facts_of(out.dispatch))
            for out in claimed if out.requires_token
        }  # fmt: skip
        if not signed:
            return [out.dispatch for out in claimed]
        token_hashes = {id_: token_hash(token) for id_, token in signed.items()}
        hashed = await interactions.add_token_hashes(self._database, self._lease.worker_id, token_hashes)
        ready: list[Dispatch] = []
        for dispatch in (out.dispatch for out in claimed):
            id_ = dispatch.interaction_id
            if id_ not in signed:
                ready.append(dispatch)
            elif id_ in hashed:
                ready.append(replace(dispatch, token=signed[id_]))
            else:
                self.claimed.note(Sent(id_, dispatch.attempt, timedelta(seconds=HELD_PAUSE)))
        return ready


def facts_of(dispatch: Dispatch) -> TokenFacts:
    """The facts in the token of an interaction."""
    return TokenFacts(
        dispatch.tenant, dispatch.interaction_id, dispatch.correlation_id, dispatch.instance_id, dispatch.step,
        epoch_ms(dispatch.deadline),
    )  # fmt: skip
