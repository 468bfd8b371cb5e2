"""Sends nothing: an interaction waits in a list until a person, or a program, completes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, Final

from stepwell._core.interaction import Dispatch
from stepwell.config import check_name
from stepwell.errors import DefinitionError, Undeliverable
from stepwell.transports.base import Transport

LONGEST_SENDING: Final = timedelta(days=1)


class Manual(Transport):
    """Every engine has one, called "manual"; further ones give teams their own lists."""

    sends = False

    def __init__(self, name: str = "manual") -> None:
        self.name = name

    async def send(self, dispatch: Dispatch, /) -> Mapping[str, Any] | None:
        raise Undeliverable(f"nothing is sent over a manual transport: {dispatch.interaction_id}")


def with_manual(transports: Iterable[Transport]) -> dict[str, Transport]:
    """Transports by name, with the manual one that every engine has."""
    found: dict[str, Transport] = {}
    for transport in (*transports, Manual()):
        if not isinstance(transport, Transport):
            raise DefinitionError(f"transports: {transport!r} is not a Transport")
        name = getattr(transport, "name", None)
        if not isinstance(name, str) or check_name(name, "name"):
            raise DefinitionError(f"transports: {type(transport).__name__} has no name of 1 to 200 characters")
        if name in found and not isinstance(transport, Manual):
            raise DefinitionError(f"transports: two are called {name!r}")
        if not _is_time(transport.send_timeout):
            raise DefinitionError(f"transports: {name!r}: send_timeout: expected a timedelta above 0, at most "
                                  f"{LONGEST_SENDING}, got {transport.send_timeout!r}")
        found.setdefault(name, transport)
    return found


def _is_time(value: object) -> bool:
    return isinstance(value, timedelta) and timedelta(0) < value <= LONGEST_SENDING
