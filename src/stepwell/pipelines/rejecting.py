"""Items that must not stop the run: put aside, with the reason, where the author wants them."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, TypeAlias

import msgspec

log = logging.getLogger("stepwell")


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """One item that was put aside."""

    pipeline: str
    instance_id: int
    step: str
    item: Any
    reason: str
    place: str | None = None  # where it came from, as "line 7"


Sink: TypeAlias = Callable[[Rejected], Awaitable[None] | None]

class Hearing:
    """What one step rejects: `with hearing:` around its code. Around that may be another step, with its own."""

    __slots__ = ("_before", "pending")

    def __init__(self) -> None:
        self.pending: list[tuple[Any, str, str | None]] = []  # item, reason, place
        self._before: Hearing | None = None

    def __enter__(self) -> None:
        self._before = _hearing.get()
        _hearing.set(self)

    def __exit__(self, *_: object) -> None:
        _hearing.set(self._before)


_hearing: ContextVar[Hearing | None] = ContextVar("stepwell rejected", default=None)


def reject(item: Any, reason: str, *, place: str | None = None) -> None:
    """Put an item aside from within a step, and go on: a broken row of a file, with its line as the place."""
    hearing = _hearing.get()
    if hearing is None:
        raise RuntimeError("reject() is called outside of a step of a pipeline")
    hearing.pending.append((item, reason, place))


def log_rejected(rejected: Rejected) -> None:
    """Where rejected items go unless the pipeline says otherwise: to the log, without their content."""
    where = "" if rejected.place is None else f", {rejected.place}"
    log.warning("pipeline %s #%d: %s rejected an item%s: %s", rejected.pipeline, rejected.instance_id, rejected.step,
                where, rejected.reason)
