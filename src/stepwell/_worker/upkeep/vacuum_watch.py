"""Warns about transactions and slots that keep vacuum from removing dead rows, which slows every claim."""

from __future__ import annotations

import logging
from datetime import timedelta
from time import monotonic

from stepwell._store.connection.pool import Database
from stepwell._store.registrations import workers
from stepwell._store.registrations.workers import Holder

log = logging.getLogger("stepwell")


class Watchdog:
    """Checks with the reaper, at most once a minute. One worker of a cluster warns, and rarely repeats a warning."""

    LONGER_THAN = timedelta(minutes=1)
    SLOT_AGE = 1_000_000  # transactions that a replication slot may be behind
    LOOK_EVERY = 60.0
    REPEAT_AFTER = 600.0

    def __init__(self, database: Database) -> None:
        self._database = database
        self._look_at = monotonic() + self.LOOK_EVERY
        self._told: dict[tuple[str, str], float] = {}
        self._first_seen: dict[str, float] = {}  # transactions with a hidden start time, by number

    async def look(self, worker_id: int) -> None:
        """Warn about blockers that were not named within the last ten minutes."""
        now = monotonic()
        if now < self._look_at:
            return
        self._look_at = now + self.LOOK_EVERY
        self._told = {name: at for name, at in self._told.items() if now - at < self.REPEAT_AFTER}
        found = await workers.find_holders(self._database, worker_id, self.LONGER_THAN, self.SLOT_AGE)
        first = {h.number: self._first_seen.get(h.number, now) for h in found if h.number is not None}
        self._first_seen = first
        for holder in found:
            if holder.number is not None and now - first[holder.number] < self.LONGER_THAN.total_seconds():
                continue
            if (holder.kind, holder.name) not in self._told:
                self._told[holder.kind, holder.name] = now
                log.warning(_words(holder))


def _words(holder: Holder) -> str:
    since = "" if holder.since is None else f", since {holder.since:%Y-%m-%d %H:%M:%S %Z}"
    what = f"pid {holder.name}" if holder.kind == "transaction" else f"{holder.kind} {holder.name!r}"
    return (
        f"reaper: {what} ({holder.application or 'no application name'}, {holder.state or 'state unknown'}{since}) "
        f"keeps vacuum from removing dead rows, so claims become slower; {_REMEDIES[holder.kind]}"
    )


_REMEDIES = {
    "transaction": "end that transaction, or set idle_in_transaction_session_timeout",
    "prepared transaction": "commit it or roll it back (COMMIT PREPARED, ROLLBACK PREPARED)",
    "replication slot": "let its consumer catch up, or drop it (pg_drop_replication_slot)",
}
