"""What a step is handed: who the instance is, its state, and what the engine knows about this run."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from stepwell.errors import NotTransactional

StateT = TypeVar("StateT")


class Context(Generic[StateT]):
    """One run of one step. Change `state` in place, or return an outcome with `state=`."""

    __slots__ = (
        "_connection", "_in_handle", "attempt", "awaited", "children", "fence", "id", "inbox", "key", "machine",
        "resources", "state", "step", "tenant", "version", "worker_id",
    )  # fmt: skip

    def __init__(
        self,
        *,
        id: int,  # noqa: A002 - the name of the API: ctx.id
        key: str | None,
        tenant: str,
        machine: str,
        version: int,
        step: str,
        attempt: int,
        fence: int,
        state: StateT,
        worker_id: int | None = None,
        resources: Any = None,
        inbox: tuple[Any, ...] = (),
        awaited: tuple[Any, ...] = (),
        children: tuple[Any, ...] = (),
        connection: Any = None,
        in_handle: bool = False,
    ) -> None:
        self.id = id
        self.key = key
        self.tenant = tenant
        self.machine = machine
        self.version = version
        self.step = step
        self.attempt = attempt
        self.fence = fence
        self.state = state
        self.worker_id = worker_id
        self.resources = resources
        self.inbox = inbox
        self.awaited = awaited
        self.children = children
        self._connection = connection
        self._in_handle = in_handle

    @property
    def connection(self) -> Any:
        """In a transactional step: the connection, or session, whose transaction commits the outcome too."""
        if self._connection is None:
            raise NotTransactional(self.machine, self.step, in_handle=self._in_handle)
        return self._connection

    def __repr__(self) -> str:
        return f"<{self.machine} #{self.id} at {self.step!r}, attempt {self.attempt}>"
