"""Errors of statements, one class per way to react."""

from __future__ import annotations

from stepwell.errors import DatabaseError, DatabaseUnavailable


class StoreFault(DatabaseError):
    """A statement failed."""


class Outage(StoreFault, DatabaseUnavailable):
    """The database is unavailable, read only, lacks rights or tables, or closed the connection. Wait and retry.
    Whether the statement landed is unknown."""


class Unsettled(Outage):
    """The settings of a session did not arrive: a pooler drops them. No statement is sent on such a connection."""


class Overdue(Outage):
    """The statement took longer than it may: the server or the network is slow, or the statement has much to write."""


class Misfit(Outage):
    """The server refuses a statement, most likely all such statements. It did not land. One row may be the cause."""


class Contention(StoreFault):
    """The statement lost a race (deadlock, lock timeout) and changed nothing: retry it now."""


class Refusal(StoreFault):
    """Postgres refuses a value, a constraint or a size of the statement, and would refuse it again."""


class Conflict(Refusal):
    """A unique index refused it: another row was first."""
