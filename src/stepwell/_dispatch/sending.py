"""Sends one interaction over a transport; a failure is a result too."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from stepwell._core.interaction import Dispatch
from stepwell._core.serialization.codec import encode_value
from stepwell._process import probes
from stepwell._store.interactions import Lost, Sent
from stepwell.errors import InvalidInput, SendFailed, Undeliverable
from stepwell.transports import Transport

log = logging.getLogger("stepwell")

MAX_MESSAGE = 1_000
LONGEST_DELAY = timedelta(days=365)


async def send(transport: Transport, dispatch: Dispatch) -> Sent | Lost:
    """Send an interaction; returns a Sent, with a delay if it must be sent again, or a Lost if it can never be sent."""
    id_ = dispatch.interaction_id
    try:
        facts = await _send_in_time(transport, dispatch)
    except Undeliverable as error:
        log.warning("dispatcher of %s: %s cannot be sent: %s", transport.name, id_, error)
        return dispatch, str(error)[:MAX_MESSAGE]
    except BaseException as error:  # of the transport; the send is retried
        if is_cancelled_by_engine(error):
            raise
        delay = _pause_after(transport, dispatch.attempt, error)
        log.info("dispatcher of %s: %s was not sent: %s", transport.name, id_, _error_text(error))
        return Sent(id_, dispatch.attempt, delay, error=_error_text(error))
    if probes.hooks:
        await probes.reach("dispatcher.sent", id=id_)
    return Sent(id_, dispatch.attempt, metadata=_stored(transport, facts))


async def _send_in_time(transport: Transport, dispatch: Dispatch) -> Mapping[str, Any] | None:
    """Send within the transport's send_timeout. A send that never ends would occupy one of `max_in_flight` forever."""
    longest = transport.send_timeout
    try:
        async with asyncio.timeout(longest.total_seconds()) as time:
            return await transport.send(dispatch)
    except TimeoutError as error:
        if time.expired():
            raise SendFailed(f"it took longer than {longest}, the transport's send_timeout") from error
        raise


def _pause_after(transport: Transport, attempt: int, error: BaseException) -> timedelta:
    """The error's `retry_after`, or the transport's own backoff; the default backoff if that is out of range."""
    try:
        asked = error.retry_after if isinstance(error, SendFailed) else None
        pause = transport.backoff(attempt) if asked is None else asked
        if timedelta(0) <= pause <= LONGEST_DELAY:
            return pause
    except Exception:
        log.exception("dispatcher of %s: its backoff failed", transport.name)
    return Transport.backoff(transport, attempt)


def _stored(transport: Transport, facts: Mapping[str, Any] | None) -> str | None:
    """The facts that the transport reported, as JSON; None if they cannot be stored: that must not cause a second send.
    """
    try:
        return None if facts is None else encode_value(facts, "metadata")
    except InvalidInput as error:
        log.warning("dispatcher of %s: the facts that it reported cannot be stored: %s", transport.name, error)
        return None


def is_cancelled_by_engine(error: BaseException) -> bool:
    """Whether the engine cancels this task; a transport may raise a CancelledError of its own."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError):
        return task is not None and bool(task.cancelling())
    return not isinstance(error, Exception)


def _error_text(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(error)).strip()[:MAX_MESSAGE]
