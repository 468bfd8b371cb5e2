"""Sends interactions over one transport: claims them, sends them, records the result. At least once."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from stepwell._core.interaction import Dispatch, epoch_ms
from stepwell._core.resume_token import TokenFacts, TokenKeys, token_hash
from stepwell._core.serialization.codec import encode_value
from stepwell._core.store_errors import StoreFault
from stepwell._lease.lease import Lease
from stepwell._process import probes
from stepwell._process.outages import ONCE
from stepwell._process.service import Service
from stepwell._store import interactions
from stepwell._store.await_units import Settled
from stepwell._store.connection.pool import Database
from stepwell._store.interactions import Lost, Outgoing, Sent
from stepwell.errors import InvalidInput, SendFailed, Undeliverable
from stepwell.transports import Admit, Transport

log = logging.getLogger("stepwell")

MAX_MESSAGE = 1_000
HELD_PAUSE = 0.05  # seconds until a result is recorded again after its row was locked
CANCEL_TIMEOUT = 1.0
LONGEST_DELAY = timedelta(days=365)


class Opened:
    """A transport that an engine's workers share: the first user opens it, the last one closes it."""

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
        self._settled = settled
        self._expect_due = expect_due
        self._sending: set[asyncio.Task[None]] = set()
        self._sent: list[Sent] = []
        self._failed: list[Lost] = []
        self._unrecorded: set[str] = set()  # claimed, and not recorded yet
        self._is_in_doubt = False  # the reply of a claim may be lost: rows may be claimed that are not known here
        self._is_draining = False
        self._has_due = False  # the timers say that interactions are to be sent
        self._leaves_guarded = False  # some interactions need a token, and this engine has no keys to sign it

    def wake_for_due(self) -> None:
        """Interactions have been waiting to be sent for a while."""
        self._has_due = True
        self.wake()

    async def tick(self) -> float | None:
        await self._note()
        if self._is_in_doubt:
            await self._release(self._unrecorded)
            self._is_in_doubt = False
        later = HELD_PAUSE if self._sent or self._failed else None
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
            self._unrecorded.add(dispatch.interaction_id)
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
        """Claim no more; wait for running sends and record them. The rest is released, and sent by other workers."""
        self._is_draining = True
        await self.stop()
        with suppress(StoreFault):  # an interaction that could not be recorded is sent again
            await self._wait_for_sendings(timeout)
            await self._note()
        for task in self._sending:
            task.cancel("the worker stops")
        if self._sending:
            await asyncio.wait(self._sending, timeout=CANCEL_TIMEOUT)
        with suppress(StoreFault):
            await self._release(())

    async def _wait_for_sendings(self, timeout: float) -> None:
        until = asyncio.get_running_loop().time() + timeout
        while self._sending and (left := until - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(self._sending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            await self._note()

    async def _release(self, kept: Collection[str]) -> None:
        """Release the interactions that the database counts as this worker's, other than those `kept`."""
        if not self._lease.is_held:
            return
        released = await interactions.release(self._database, self._lease.worker_id, self.transport.name, kept)
        if released:
            log.info("%s: released %d interactions", self.name, released)
            self._settled(Settled(transports=[self.transport.name]))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self.wake()

    async def _with_tokens(self, claimed: list[Outgoing]) -> list[Dispatch]:
        """Sign the tokens, and store their hashes before any token is sent.

        An interaction that is being completed right now takes no hash: it is sent a moment later, if it is still open.
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
                self._sent.append(Sent(id_, dispatch.attempt, timedelta(seconds=HELD_PAUSE)))
        return ready

    async def _send(self, dispatch: Dispatch) -> None:
        try:
            facts = await self._send_in_time(dispatch)
        except Undeliverable as error:
            log.warning("%s: %s cannot be sent: %s", self.name, dispatch.interaction_id, error)
            self._failed.append((dispatch, str(error)[:MAX_MESSAGE]))
        except BaseException as error:  # the transport's; the sending is tried again
            if _is_cancelled_by_engine(error):
                raise
            delay = self._pause_after(dispatch.attempt, error)
            log.info("%s: %s was not sent: %s", self.name, dispatch.interaction_id, _error_text(error))
            self._sent.append(Sent(dispatch.interaction_id, dispatch.attempt, delay, error=_error_text(error)))
        else:
            if probes.hooks:
                await probes.reach("dispatcher.sent", id=dispatch.interaction_id)
            self._sent.append(Sent(dispatch.interaction_id, dispatch.attempt, metadata=self._stored(facts)))

    async def _send_in_time(self, dispatch: Dispatch) -> Mapping[str, Any] | None:
        """Send, within the transport's send_timeout. A sending that never ends would keep its place for ever."""
        longest = self.transport.send_timeout
        try:
            async with asyncio.timeout(longest.total_seconds()) as time:
                return await self.transport.send(dispatch)
        except TimeoutError as error:
            if time.expired():
                raise SendFailed(f"it took longer than {longest}, the transport's send_timeout") from error
            raise

    def _pause_after(self, attempt: int, error: BaseException) -> timedelta:
        """The error's `retry_after`, or the transport's own backoff; the default backoff if that is out of range."""
        try:
            asked = error.retry_after if isinstance(error, SendFailed) else None
            pause = self.transport.backoff(attempt) if asked is None else asked
            if timedelta(0) <= pause <= LONGEST_DELAY:
                return pause
        except Exception:
            log.exception("%s: its backoff failed", self.name)
        return Transport.backoff(self.transport, attempt)

    def _stored(self, facts: Mapping[str, Any] | None) -> str | None:
        """What the transport reported, as JSON. The interaction is sent: facts that cannot be stored do not send it
        again."""
        try:
            return None if facts is None else encode_value(facts, "metadata")
        except InvalidInput as error:
            log.warning("%s: what it reported cannot be stored: %s", self.name, error)
            return None

    async def _note(self) -> None:
        """Record all sendings that have ended. Rows that another transaction locks are recorded later.

        Without a lease there is nothing to record: another worker sends the interactions again.
        """
        if not self._lease.is_held:
            return
        worker_id = self._lease.worker_id
        if self._sent:
            batch, self._sent = self._sent, []
            unrecorded: Sequence[Sent] = batch
            try:
                unrecorded = await interactions.record(self._database, worker_id, batch)
            finally:
                self._sent = [*unrecorded, *self._sent]
            self._unrecorded -= {sent.id for sent in batch} - {sent.id for sent in unrecorded}
            if delays := [sent.delay for sent in batch if sent.delay is not None]:
                self._expect_due(min(delays).total_seconds())
            if probes.hooks:
                await probes.reach("dispatcher.recorded", ids=[sent.id for sent in batch])
        if self._failed:
            lost, self._failed = self._failed, []
            unended: Sequence[Lost] = lost
            try:
                unended, settled = await interactions.fail(self._database, worker_id, lost)
            finally:
                self._failed = [*unended, *self._failed]
            self._unrecorded -= {d.interaction_id for d, _ in lost} - {d.interaction_id for d, _ in unended}
            self._settled(settled)


class Receiver(Service):
    """The receiving side of one transport: runs `receive`, and starts it again when it fails."""

    def __init__(self, opened: Opened, lease: Lease, admit: Admit) -> None:
        super().__init__(f"receiver of {opened.transport.name}")
        self._party = ONCE  # a receive that works does not end its tick
        self._opened = opened
        self._lease = lease
        self._admit = admit

    async def tick(self) -> float | None:
        """Receive in a separate task: up to Python 3.12 a TaskGroup that fails leaves its task half cancelled."""
        await self._opened.ensure(self._lease)
        try:
            await asyncio.create_task(self._receive(), name=f"stepwell {self.name}")
        except asyncio.CancelledError as error:
            if _is_cancelled_by_engine(error):
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


def facts_of(dispatch: Dispatch) -> TokenFacts:
    """The facts in the token of an interaction."""
    return TokenFacts(
        dispatch.tenant, dispatch.interaction_id, dispatch.correlation_id, dispatch.instance_id, dispatch.step,
        epoch_ms(dispatch.deadline),
    )  # fmt: skip


def _is_cancelled_by_engine(error: BaseException) -> bool:
    """Whether the engine cancels this task; a transport may raise a CancelledError of its own."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError):
        return task is not None and bool(task.cancelling())
    return not isinstance(error, Exception)


def _error_text(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()[:MAX_MESSAGE]
