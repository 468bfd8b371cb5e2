"""Calls of `sql/notifications`: hints between processes. Any role that can connect can send them: never trust one."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell._store.connection.pool import Queryable

# Channels. In the database their names have the schema as a prefix: stepwell_work.
WORK = "work"  # payload: a queue with claimable rows
DUE = "due"  # payload: empty; a row comes due, maybe before the next tick of the timers
SETTLED = "settled"  # payload: the id of a watched instance that has ended or parked
REVOKED = "revoked"  # payload: id and new fence of an executing instance that was taken from its worker
QUEUES = "queues"  # payload: empty; a queue was paused or resumed
IDLE = "idle"  # payload: empty; a caller's transaction ended a holder of a key, or a worker gave up its claims
DISPATCH = "dispatch"  # payload: a transport with interactions to send
CLEANUP = "cleanup"  # payload: empty; a unit with many interactions ended, or was deleted
PROBE = "probe"  # payload: a random text that the listener sends to itself
CHANNELS = (WORK, DUE, SETTLED, REVOKED, QUEUES, IDLE, DISPATCH, CLEANUP, PROBE)
REVOKED_HERE = "revoked here"  # as REVOKED, published within this process, and so reliable

LONGEST_NUMBER = 19  # digits of a bigint


def read_number(text: str) -> int | None:
    """The number in a payload; None if the payload is not a number."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= LONGEST_NUMBER else None


async def send(db: Queryable, sent: Sequence[tuple[str, str]]) -> None:
    await db.fetch("notifications/send", [channel for channel, _ in sent], [payload for _, payload in sent])
