"""The argument of a step: the instance's identity, its state, and facts about this run."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import msgspec

from stepwell.errors import NotTransactional

StateT = TypeVar("StateT")


class Context(msgspec.Struct, Generic[StateT], kw_only=True, eq=False):
    """One run of one step. Change `state` in place, or return an outcome with `state=`."""

    id: int
    key: str | None
    tenant: str
    machine: str
    version: int
    step: str
    attempt: int
    fence: int
    state: StateT
    worker_id: int | None = None
    resources: Any = None
    inbox: tuple[Any, ...] = ()
    awaited: tuple[Any, ...] = ()
    children: tuple[Any, ...] = ()
    replies: tuple[Any, ...] = ()
    _connection: Any = None
    _in_handle: bool = False
    _outputs: Any = None
    _keep_thread: Any = None

    @property
    def reply(self) -> Any:
        """The reply to the `Ask` of the step before; None if there was none, or one with several (see `replies`)."""
        return self.replies[0] if len(self.replies) == 1 else None

    @property
    def connection(self) -> Any:
        """In a transactional step: the connection, or session, of the transaction that also commits the outcome."""
        if self._connection is None:
            raise NotTransactional(self.machine, self.step, in_handle=self._in_handle)
        return self._connection

    def __repr__(self) -> str:
        return f"<{self.machine} #{self.id} at {self.step!r}, attempt {self.attempt}>"
