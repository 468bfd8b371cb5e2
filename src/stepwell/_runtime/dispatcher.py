"""Sends questions over one transport: takes them, sends so many at a time, and notes how it went. At least once."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import traceback
from collections.abc import Callable
from contextlib import suppress

from msgspec.structs import replace

from stepwell import _probes
from stepwell._core.codec import encode_value
from stepwell._core.interactions import Dispatch, epoch_ms
from stepwell._core.tokens import TokenFacts, TokenKeys
from stepwell._runtime.lease import Lease
from stepwell._service import Service
from stepwell._store import interactions
from stepwell._store.database import Database
from stepwell._store.interactions import Outgoing, Sent
from stepwell._store.units import Settled
from stepwell.errors import SendFailed, Undeliverable
from stepwell.transports import Admit, Transport

log = logging.getLogger("stepwell")

MAX_MESSAGE = 1_000


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
        self._failed: list[tuple[Dispatch, str]] = []
        self._is_draining = False

    async def tick(self) -> float | None:
        await self._note()
        room = self.transport.max_in_flight - len(self._sending)
        if room <= 0 or self._is_draining or not self._lease.is_held:
            return None
        await self._opened.ensure(self._lease)
        taken = await interactions.claim(self._database, self._lease.worker_id, self.transport.name, room)
        if _probes.hooks and taken:
            await _probes.reach("dispatcher.claimed", ids=[out.dispatch.interaction_id for out in taken])
        for dispatch in await self._with_tokens(taken):
            task = asyncio.create_task(self._send(dispatch), name=f"stepwell send {dispatch.interaction_id}")
            self._sending.add(task)
            task.add_done_callback(self._ended)
        return 0.0 if len(taken) == room else None

    async def drain(self, patience: float) -> None:
        """Take no more; wait for what is being sent, and note it. What is left is sent again by others."""
        self._is_draining = True
        if self._sending:
            await asyncio.wait(self._sending, timeout=patience)
        for task in tuple(self._sending):
            task.cancel("the worker stops")
        await self.stop()
        with suppress(Exception):  # what could not be noted is sent again
            await self._note()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self.wake()

    async def _with_tokens(self, taken: list[Outgoing]) -> list[Dispatch]:
        """Sign what goes with a token, and keep the tokens' hashes before anybody has them."""
        signed: dict[str, str] = {
            out.dispatch.interaction_id: self._token_keys.sign(facts_of(out.dispatch))
            for out in taken if out.requires_token
        }  # fmt: skip
        if signed:
            await interactions.seal(self._database, [(id_, seal_of(token)) for id_, token in signed.items()])
        return [_with_token(out.dispatch, signed.get(out.dispatch.interaction_id)) for out in taken]

    async def _send(self, dispatch: Dispatch) -> None:
        try:
            facts = await self.transport.send(dispatch)
            metadata = None if facts is None else encode_value(facts, "metadata")
        except Undeliverable as error:
            log.warning("%s: %s can not be sent: %s", self.name, dispatch.interaction_id, error)
            self._failed.append((dispatch, str(error)[:MAX_MESSAGE]))
        except Exception as error:  # noqa: BLE001 - the transport's; it is tried again
            asked = error.retry_after if isinstance(error, SendFailed) else None
            delay = self.transport.backoff(dispatch.attempt) if asked is None else asked
            log.info("%s: %s was not sent: %s", self.name, dispatch.interaction_id, _said(error))
            self._sent.append(Sent(dispatch.interaction_id, dispatch.attempt, delay, error=_said(error)))
        else:
            if _probes.hooks:
                await _probes.reach("dispatcher.sent", id=dispatch.interaction_id)
            self._sent.append(Sent(dispatch.interaction_id, dispatch.attempt, metadata=metadata))

    async def _note(self) -> None:
        """Write down how sendings ended, all that have ended by now at once."""
        worker_id = self._lease.worker_id
        if self._sent:
            batch, self._sent = self._sent, []
            try:
                await interactions.record(self._database, worker_id, batch)
            except BaseException:
                self._sent = batch + self._sent
                raise
            if delays := [sent.delay for sent in batch if sent.delay is not None]:
                self._expect_due(min(delays).total_seconds())
            if _probes.hooks:
                await _probes.reach("dispatcher.recorded", ids=[sent.id for sent in batch])
        if self._failed:
            lost, self._failed = self._failed, []
            try:
                settled = await interactions.fail(self._database, worker_id, lost)
            except BaseException:
                self._failed = lost + self._failed
                raise
            self._settled(settled)


class Receiver(Service):
    """One transport's way back: lets it bring answers in, and comes back to it when it fails."""

    def __init__(self, opened: Opened, lease: Lease, admit: Admit) -> None:
        super().__init__(f"receiver of {opened.transport.name}")
        self._opened = opened
        self._lease = lease
        self._admit = admit

    async def tick(self) -> float | None:
        await self._opened.ensure(self._lease)
        await self._opened.transport.receive(self._admit)
        return None

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


def seal_of(token: str) -> str:
    """The hash of a token by which SQL knows it."""
    return hashlib.sha256(token.encode()).hexdigest()


def _with_token(dispatch: Dispatch, token: str | None) -> Dispatch:
    return dispatch if token is None else replace(dispatch, token=token)


def _said(error: Exception) -> str:
    return "".join(traceback.format_exception_only(error)).strip()[:MAX_MESSAGE]
