"""Sends questions over one transport: takes them, sends so many at a time, and notes how it went. At least once."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from stepwell import _probes
from stepwell._core.codec import encode_value
from stepwell._core.faults import StoreFault
from stepwell._core.interactions import Dispatch, epoch_ms
from stepwell._core.tokens import TokenFacts, TokenKeys, seal_of
from stepwell._runtime.lease import Lease
from stepwell._service import Service
from stepwell._store import interactions
from stepwell._store.database import Database
from stepwell._store.interactions import Lost, Outgoing, Sent
from stepwell._store.units import Settled
from stepwell.errors import InvalidInput, SendFailed, Undeliverable
from stepwell.transports import Admit, Transport

log = logging.getLogger("stepwell")

MAX_MESSAGE = 1_000
HELD_PAUSE = 0.05  # seconds until what somebody held is noted again
CANCEL_PATIENCE = 1.0
LONGEST_DELAY = timedelta(days=365)


class Opened:
    """A transport that an engine's workers share: opened by whoever is first, closed by whoever is last."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self._users: set[object] = set()
        self._opening = asyncio.Lock()

    async def ensure(self, user: object) -> None:
        """Open it unless somebody has; a user that was there is no second one."""
        if user not in self._users:
            async with self._opening:
                if not self._users:
                    await self.transport.open()
                self._users.add(user)

    async def close(self, user: object) -> None:
        """This user needs it no more."""
        async with self._opening:
            if user in self._users:
                self._users.remove(user)
                if not self._users:
                    await self.transport.close()


class Dispatcher(Service):
    """One transport's way out, in one worker. Its trouble is nobody else's."""

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
        self._in_hand: set[str] = set()  # taken, and not noted yet
        self._is_in_doubt = False  # something may be taken that we do not know of
        self._is_draining = False
        self._is_told = False  # the timers say that something is to be sent
        self._leaves_guarded = False  # there are questions that need a token, and no keys here to sign one with

    def tell(self) -> None:
        """Something is to be sent, and has been for a while."""
        self._is_told = True
        self.wake()

    async def tick(self) -> float | None:
        await self._note()
        if self._is_in_doubt:
            await self._give_back(self._in_hand)
            self._is_in_doubt = False
        later = HELD_PAUSE if self._sent or self._failed else None
        room = self.transport.max_in_flight - len(self._sending)
        if room <= 0 or self._is_draining or not self._lease.is_held:
            return later
        await self._opened.ensure(self._lease)
        self._is_in_doubt = True  # until we have what is taken: an answer may be lost on its way
        taken = await interactions.claim(
            self._database, self._lease.worker_id, self.transport.name, room, has_keys=not self._token_keys.is_empty
        )
        if _probes.hooks and taken:
            await _probes.reach("dispatcher.claimed", ids=[out.dispatch.interaction_id for out in taken])
        for dispatch in await self._with_tokens(taken):
            self._in_hand.add(dispatch.interaction_id)
            task = asyncio.create_task(self._send(dispatch), name=f"stepwell send {dispatch.interaction_id}")
            self._sending.add(task)
            task.add_done_callback(self._ended)
        self._is_in_doubt = False
        if self._is_told and not taken:
            await self._look_for_guarded()
        self._is_told = False
        return 0.0 if len(taken) == room else later

    async def _look_for_guarded(self) -> None:
        """Say, once, that there are questions which only a worker with keys can send."""
        if self._token_keys.is_empty and not self._leaves_guarded:
            self._leaves_guarded = await interactions.has_guarded(self._database, self.transport.name)
            if self._leaves_guarded:
                log.warning("%s: questions that need a token wait for a worker that has token_keys; this one has none",
                            self.name)  # fmt: skip

    async def drain(self, patience: float) -> None:
        """Take no more; wait for what is being sent, and note it. What is left is given back, and sent by others."""
        self._is_draining = True
        await self.stop()
        with suppress(StoreFault):  # what could not be noted is sent again
            await self._wait_for_sendings(patience)
            await self._note()
        for task in self._sending:
            task.cancel("the worker stops")
        if self._sending:
            await asyncio.wait(self._sending, timeout=CANCEL_PATIENCE)
        with suppress(StoreFault):
            await self._give_back(())

    async def _wait_for_sendings(self, patience: float) -> None:
        until = asyncio.get_running_loop().time() + patience
        while self._sending and (left := until - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(self._sending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            await self._note()

    async def _give_back(self, kept: Collection[str]) -> None:
        """Let be sent again what the database says is ours, and what we do not send."""
        if not self._lease.is_held:
            return
        given_back = await interactions.give_back(self._database, self._lease.worker_id, self.transport.name, kept)
        if given_back:
            log.info("%s: %d questions are given back", self.name, given_back)
            self._settled(Settled(transports=[self.transport.name]))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self.wake()

    async def _with_tokens(self, taken: list[Outgoing]) -> list[Dispatch]:
        """Sign what goes with a token, and keep the tokens' hashes before anybody has them.

        What somebody answers right now can not be sealed: it goes a moment later, if it is not answered.
        """
        signed = {
            out.dispatch.interaction_id: self._token_keys.sign(facts_of(out.dispatch))
            for out in taken if out.requires_token
        }  # fmt: skip
        if not signed:
            return [out.dispatch for out in taken]
        seals = {id_: seal_of(token) for id_, token in signed.items()}
        sealed = await interactions.seal_taken(self._database, self._lease.worker_id, seals)
        ready: list[Dispatch] = []
        for dispatch in (out.dispatch for out in taken):
            id_ = dispatch.interaction_id
            if id_ not in signed:
                ready.append(dispatch)
            elif id_ in sealed:
                ready.append(replace(dispatch, token=signed[id_]))
            else:
                self._sent.append(Sent(id_, dispatch.attempt, timedelta(seconds=HELD_PAUSE)))
        return ready

    async def _send(self, dispatch: Dispatch) -> None:
        try:
            facts = await self._send_in_time(dispatch)
        except Undeliverable as error:
            log.warning("%s: %s can not be sent: %s", self.name, dispatch.interaction_id, error)
            self._failed.append((dispatch, str(error)[:MAX_MESSAGE]))
        except BaseException as error:  # the transport's; it is tried again
            if _is_told_to_stop(error):
                raise
            delay = self._pause_after(dispatch.attempt, error)
            log.info("%s: %s was not sent: %s", self.name, dispatch.interaction_id, _said(error))
            self._sent.append(Sent(dispatch.interaction_id, dispatch.attempt, delay, error=_said(error)))
        else:
            if _probes.hooks:
                await _probes.reach("dispatcher.sent", id=dispatch.interaction_id)
            self._sent.append(Sent(dispatch.interaction_id, dispatch.attempt, metadata=self._stored(facts)))

    async def _send_in_time(self, dispatch: Dispatch) -> Mapping[str, Any] | None:
        """A sending that never ends would keep its place for ever: it is cut off, and has failed."""
        longest = self.transport.send_timeout
        try:
            async with asyncio.timeout(longest.total_seconds()) as time:
                return await self.transport.send(dispatch)
        except TimeoutError as error:
            if time.expired():
                raise SendFailed(f"it took longer than {longest}, the transport's send_timeout") from error
            raise

    def _pause_after(self, attempt: int, error: BaseException) -> timedelta:
        """What the error asks for, or the transport's own pause; the usual one if that makes no sense."""
        try:
            asked = error.retry_after if isinstance(error, SendFailed) else None
            pause = self.transport.backoff(attempt) if asked is None else asked
            if timedelta(0) <= pause <= LONGEST_DELAY:
                return pause
        except Exception:
            log.exception("%s: its backoff failed", self.name)
        return Transport.backoff(self.transport, attempt)

    def _stored(self, facts: Mapping[str, Any] | None) -> str | None:
        """What the transport reported, as JSON. It is sent by now: facts that can not be kept do not send it again."""
        try:
            return None if facts is None else encode_value(facts, "metadata")
        except InvalidInput as error:
            log.warning("%s: what it reported can not be kept: %s", self.name, error)
            return None

    async def _note(self) -> None:
        """Write down how sendings ended, all that have ended by now at once. What somebody holds is noted later.

        Without a lease there is nothing to note: others send it again.
        """
        if not self._lease.is_held:
            return
        worker_id = self._lease.worker_id
        if self._sent:
            batch, self._sent = self._sent, []
            unnoted: Sequence[Sent] = batch
            try:
                unnoted = await interactions.record(self._database, worker_id, batch)
            finally:
                self._sent = [*unnoted, *self._sent]
            self._in_hand -= {sent.id for sent in batch} - {sent.id for sent in unnoted}
            if delays := [sent.delay for sent in batch if sent.delay is not None]:
                self._expect_due(min(delays).total_seconds())
            if _probes.hooks:
                await _probes.reach("dispatcher.recorded", ids=[sent.id for sent in batch])
        if self._failed:
            lost, self._failed = self._failed, []
            unended: Sequence[Lost] = lost
            try:
                unended, settled = await interactions.fail(self._database, worker_id, lost)
            finally:
                self._failed = [*unended, *self._failed]
            self._in_hand -= {d.interaction_id for d, _ in lost} - {d.interaction_id for d, _ in unended}
            self._settled(settled)


class Receiver(Service):
    """One transport's way back: lets it bring answers in, and comes back to it when it fails."""

    def __init__(self, opened: Opened, lease: Lease, admit: Admit) -> None:
        super().__init__(f"receiver of {opened.transport.name}")
        self._opened = opened
        self._lease = lease
        self._admit = admit

    async def tick(self) -> float | None:
        """In a task of its own: up to Python 3.12 a TaskGroup that fails leaves its task half cancelled."""
        await self._opened.ensure(self._lease)
        try:
            await asyncio.create_task(self._receive(), name=f"stepwell {self.name}")
        except asyncio.CancelledError as error:
            if _is_told_to_stop(error):
                raise
            raise SendFailed("receiving was cancelled, by nobody of ours") from error
        return None

    async def _receive(self) -> None:
        await self._opened.transport.receive(self._admit)

    async def stop(self) -> None:
        """Receiving ends when it is cancelled, not before: there is nothing to wait for."""
        if self._task is not None:
            self._task.cancel()
        await super().stop()


def facts_of(dispatch: Dispatch) -> TokenFacts:
    """What the token of a question says."""
    return TokenFacts(
        dispatch.tenant, dispatch.interaction_id, dispatch.correlation_id, dispatch.instance_id, dispatch.step,
        epoch_ms(dispatch.deadline),
    )  # fmt: skip


def _is_told_to_stop(error: BaseException) -> bool:
    """Whether it is the engine that ends a sending; a transport may raise a CancelledError of its own."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError):
        return task is not None and bool(task.cancelling())
    return not isinstance(error, Exception)


def _said(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()[:MAX_MESSAGE]
