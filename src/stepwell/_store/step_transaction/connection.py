"""The connections that transactional steps receive, from a separate pool."""

from __future__ import annotations

from typing import Any, Final, Protocol, Self

from stepwell._store.connection.pool import Queryable
from stepwell._store.connection.settings import Bounds, PatientConnection, resetting
from stepwell._store.connection.sql_files import application
from stepwell._store.connection.timeline import Timelines
from stepwell.config import SCHEMA
from stepwell.errors import TransactionBroken

# The author's queries are planned as on any other connection; only the isolation level is set.
STEP: Final = {"default_transaction_isolation": "read committed"}

END_PATIENCE = 5.0  # seconds for a rollback or a reset, before the connection is terminated

# The driver's own reset keeps a changed role and temporary tables.
_ALSO_RESET = "\nSET SESSION AUTHORIZATION DEFAULT;\nRESET ROLE;\nDISCARD TEMP;"


class StepConnection(PatientConnection):
    """A connection for the author of a step, reset after each step."""

    is_altered = False
    """Whether a step changed its codecs, which no reset undoes."""
    is_lent = False
    """Whether a step has it: the step must not close it."""

    @property
    def bare(self) -> Self:
        """The connection without the pool's proxy, which raises on every use once the connection is lost."""
        return self

    def get_reset_query(self) -> str:
        """The driver's reset, then our settings again: a reset restores those of the startup message."""
        return f"{super().get_reset_query()}{_ALSO_RESET}\n{resetting(self.settings)}"

    async def close(self, *, timeout: float | None = None) -> None:
        if self.is_lent:
            raise TransactionBroken("close() was called in the step; "
                                    "the engine returns the connection to its pool after the step")
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
    """A pool connection and its transaction, in the form of one driver."""

    ctx_connection: Any  # the step receives it as ctx.connection

    @property
    def connection(self) -> StepConnection:
        """The driver's connection, for the engine's statements."""
        ...

    async def begin(self) -> Queryable:
        """Begin the transaction; returns what sends its first statement."""
        ...

    async def write_out(self) -> None:
        """Send the author's pending writes, and take the connection back from the step."""
        ...

    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...

    async def give_back(self) -> None:
        """Reset the connection and return it to its pool."""
        ...

    async def discard(self) -> None:
        """Terminate the connection: the server rolls back."""
        ...


class Pool(Protocol):
    """A pool of transactions for steps."""

    schema: str
    statements: int
    bounds: Bounds
    timelines: Timelines | None

    async def open(self) -> None: ...
    async def close(self) -> None: ...

    def drop_idle(self) -> None:
        """Terminate the idle connections, because another one was dark."""
        ...

    async def acquire(self) -> Carrier:
        """Wait for a connection."""
        ...


def step_settings(bounds: Bounds, schema: str = SCHEMA) -> dict[str, str]:
    """The settings of a step's connection."""
    return {**STEP, **bounds.tcp(), "application_name": f"{application(schema)} step"}
