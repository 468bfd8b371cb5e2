"""What can go wrong with a statement, by the answer it calls for."""

from __future__ import annotations

from stepwell.errors import DatabaseError, DatabaseUnavailable


class StoreFault(DatabaseError):
    """A statement failed."""


class Outage(StoreFault, DatabaseUnavailable):
    """The database is away, or hung up on us: wait, reconnect, try again. Whether the statement landed is unknown."""


class Contention(StoreFault):
    """The statement lost a race (deadlock, lock timeout) and did nothing: try again now."""


class Refusal(StoreFault):
    """Postgres refuses this very statement, also the next time."""


class Conflict(Refusal):
    """A unique index refused it: somebody else was first."""
