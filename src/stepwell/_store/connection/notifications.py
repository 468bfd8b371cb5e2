"""Calls of `sql/notifications`: hints between processes. Any role that can connect can send one: they prove nothing."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell._store.connection.pool import Queryable

# Channels, without the schema, which stands before each in the database: stepwell_work.
WORK = "work"  # payload: a queue in which something may be claimed
DUE = "due"  # payload: empty; some row comes due later, perhaps earlier than you think
SETTLED = "settled"  # payload: the id of a watched instance that came to rest
REVOKED = "revoked"  # payload: id and new fence of an executing instance that was taken from its worker
QUEUES = "queues"  # payload: empty; a queue was paused or resumed
IDLE = "idle"  # payload: empty; a caller's transaction ended a holder of a key, or a worker left its steps
DISPATCH = "dispatch"  # payload: a transport with something to send
CLEANUP = "cleanup"  # payload: empty; a unit with many questions ended, or was deleted
PROBE = "probe"  # payload: a word that the listener sends to itself
CHANNELS = (WORK, DUE, SETTLED, REVOKED, QUEUES, IDLE, DISPATCH, CLEANUP, PROBE)
REVOKED_HERE = "revoked here"  # as REVOKED, said within this process, and so no hint but true

LONGEST_NUMBER = 19  # digits of a bigint


def read_number(text: str) -> int | None:
    """A number in a notice, if it is one."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= LONGEST_NUMBER else None


async def send(db: Queryable, notices: Sequence[tuple[str, str]]) -> None:
    await db.fetch("notifications/send", [channel for channel, _ in notices], [payload for _, payload in notices])
