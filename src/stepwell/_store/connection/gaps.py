"""Reaches a probe between the statements of a transaction, so that a test can stop a process there."""

from __future__ import annotations

import contextlib
import inspect
import sys
from types import FrameType

from stepwell._process import probes

LONGEST_LABEL = 60


class Gaps:
    """The gaps of one open transaction: before each statement, before its COMMIT, and after it."""

    __slots__ = ("_backend", "_last", "_number", "name")

    def __init__(self, name: str, backend: int) -> None:
        self.name = name
        self._backend = backend
        self._number = 0
        self._last = "begin"

    async def reach(self, statement: str | None) -> None:
        """Run the armed hook in the gap before this statement; None: the transaction has committed."""
        number, after = self._number, self._last
        self._number, self._last = number + 1, statement or ""
        await probes.reach(
            probes.GAP, transaction=self.name, number=number, after=after, before=statement, backend=self._backend
        )


def opener() -> str:
    """The module and qualified name of the function that opens a transaction.

    Context managers are skipped: an elected duty's transaction has the name of the function that entered `elected`.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - `inspect.stack` would read every source file
    while frame is not None and _is_manager(frame):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}"


def _is_manager(frame: FrameType) -> bool:
    is_generator = bool(frame.f_code.co_flags & inspect.CO_ASYNC_GENERATOR)
    return is_generator or frame.f_code.co_filename == contextlib.__file__


def label(sql: str) -> str:
    """A short name for a statement without a file: the beginning of its text, up to the first value."""
    return sql.strip().partition("\n")[0].partition("=")[0].strip()[:LONGEST_LABEL]
