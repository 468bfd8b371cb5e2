"""Hooks: callbacks take an event, sync or async, and decorators return them unchanged."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, assert_type

from stepwell import Engine, Event, Status


def hooked(engine: Engine) -> None:
    @engine.on("failed")
    def tell(event: Event) -> int:
        assert_type(event.error_message, str | None)
        assert_type(event.status, Status | None)
        event.status = Status.DONE  # error
        return event.id

    @engine.on(["committed", "stale"])
    async def tell_later(event: Event) -> None: ...

    assert_type(engine.on("all", tell), Callable[[], None])
    later: Callable[[Event], Coroutine[Any, Any, None]] = tell_later
    number: int = tell(later)  # error
    engine.off(tell)
    engine.on("faild")  # error
    engine.on(["started", "faild"])  # error
    engine.on("failed", 42)  # error
    engine.on("failed", lambda: number)  # error
