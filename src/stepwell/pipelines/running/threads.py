"""Plain functions of steps in the thread of their run: a call, or some items of a generator at a time."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from time import monotonic
from typing import Any, Final

from stepwell._process.threads import RunThread
from stepwell.pipelines.running.rejects import Collector, Rejection

MOST: Final = 100  # items that are pulled at a time
LONGEST: Final = 0.005  # seconds after which no further item is pulled


def is_plain(function: Callable[..., Any]) -> bool:
    """Whether it may block, and has to run in a thread."""
    return not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function))


def collecting(rejects: Collector, function: Callable[..., Any], item: Any) -> Any:
    """Call a function, and collect what it rejects."""
    with rejects:
        return function(item)


class Pull:
    """The items of a plain function for one item, pulled some at a time.

    Its methods run in the thread; the loop reads their results while none of them runs.
    """

    def __init__(self, thread: RunThread, rejects: Collector) -> None:
        self._thread = thread
        self._rejects = rejects
        self._iterator: Iterator[Any] | None = None
        self.made: Any = None  # the function's return value, if a thread cannot iterate it
        self.is_for_loop = False
        self.items: deque[tuple[list[Rejection], Any]] = deque()  # pulled, each with what was rejected before it
        self.rejected: list[Rejection] = []  # after the last of them
        self.error: BaseException | None = None  # raised after them
        self.is_over = False

    def begin(self, function: Callable[..., Any], item: Any) -> None:
        with self._rejects:
            made = function(item)
        self.iterate(made)

    def iterate(self, made: Any) -> None:
        if isinstance(made, Iterable) and not isinstance(made, AsyncIterable) and not inspect.isawaitable(made):
            self.made, self.is_for_loop = None, False
            self._iterator = iter(made)
            self.pull()
        else:
            self.made, self.is_for_loop = made, True

    def pull(self) -> None:
        """Pull until there are enough items, or the time has passed."""
        assert self._iterator is not None  # noqa: S101 - it has started
        until = monotonic() + LONGEST
        rejects = self._rejects
        try:
            with rejects:
                for item in self._iterator:
                    self.items.append((rejects.take(), item))
                    if len(self.items) >= MOST or self._thread.is_given_up or monotonic() >= until:
                        return
        except BaseException as error:  # noqa: BLE001 - raised where the items are read
            self.error = error
        self.is_over, self.rejected = True, rejects.take()

    def close(self) -> None:
        """Close the generator, at whatever item it is."""
        close = getattr(self._iterator, "close", None)
        if callable(close):
            with self._rejects:
                close()
