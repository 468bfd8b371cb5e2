"""The connections of steps: handed to authors, out of a pool of their own."""

from __future__ import annotations

from typing import Any, Final, Protocol, Self

from stepwell._store.connection.pool import Queryable
from stepwell._store.connection.settings import Bounds, PatientConnection, resetting
from stepwell._store.connection.sql_files import application
from stepwell._store.connection.timeline import Timelines
from stepwell.config import SCHEMA
from stepwell.errors import TransactionBroken

# The author's queries are planned as on any other connection; only the isolation is ours.
STEP: Final = {"default_transaction_isolation": "read committed"}

END_PATIENCE = 5.0  # with a rollback or a reset, before the connection is cut instead

# What the driver's own reset leaves: another role, and temporary tables.
_ALSO_RESET = "\nSET SESSION AUTHORIZATION DEFAULT;\nRESET ROLE;\nDISCARD TEMP;"


class StepConnection(PatientConnection):
    """A connection that is handed to authors, and comes back as it was."""

    is_altered = False
    """Whether its codecs were changed, which no reset undoes."""
    is_lent = False
    """Whether a step has it: closing it is not the step's to do."""

    @property
    def bare(self) -> Self:
        """Itself, also through the pool's proxy, which raises on every use once the connection is lost."""
        return self

    def get_reset_query(self) -> str:
        """The driver's reset, and then the settings again: a reset leaves those that the connection began with."""
        return f"{super().get_reset_query()}{_ALSO_RESET}\n{resetting(self.settings)}"

    async def close(self, *, timeout: float | None = None) -> None:
        if self.is_lent:
            raise TransactionBroken("close() was called in the step; "
                                    "the connection is given back when the step is over")
        await super().close(timeout=timeout)

    async def set_type_codec(self, *args: Any, **options: Any) -> None:
        self.is_altered = True
        await super().set_type_codec(*args, **options)

    async def set_builtin_type_codec(self, *args: Any, **options: Any) -> None:
        self.is_altered = True
        await super().set_builtin_type_codec(*args, **options)

    async def reset_type_codec(self, *args: Any, **options: Any) -> None:
        self.is_altered = True
        await super().reset_type_codec(*args, **options)


class Carrier(Protocol):
    """A connection out of a pool and the transaction on it, as one driver has them."""

    ctx_connection: Any  # what the step finds in ctx.connection

    @property
    def connection(self) -> StepConnection:
        """The driver's connection, for our own statements."""
        ...

    async def begin(self) -> Queryable:
        """Begin; what the first statement is to be sent through."""
        ...

    async def write_out(self) -> None:
        """Send what the author wrote and the driver has kept in memory."""
        ...

    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...

    async def give_back(self) -> None:
        """Reset the connection and return it to its pool."""
        ...

    async def discard(self) -> None:
        """Cut the connection: the server undoes what is open."""
        ...


class Pool(Protocol):
    """Where transactions of steps come from."""

    schema: str
    statements: int
    bounds: Bounds
    timelines: Timelines | None

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    def drop_idle(self) -> None:
        """End the connections that no step has: one of them has gone dark."""
        ...

    async def acquire(self) -> Carrier:
        """Wait for a connection."""
        ...


def step_settings(bounds: Bounds, schema: str = SCHEMA) -> dict[str, str]:
    """What a step's connection begins with."""
    return {**STEP, **bounds.tcp(), "application_name": f"{application(schema)} step"}
