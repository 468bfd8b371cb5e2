"""The inbox: nothing is sent; a question waits in a list until a person, or a program, answers it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepwell._core.interactions import Dispatch
from stepwell.transports.base import Transport


class Inbox(Transport):
    """Every engine has one, called "inbox"; further ones give teams lists of their own."""

    sends = False

    def __init__(self, name: str = "inbox") -> None:
        self.name = name

    async def send(self, dispatch: Dispatch, /) -> Mapping[str, Any] | None:
        raise NotImplementedError(f"nothing is sent over an inbox: {dispatch.interaction_id}")
