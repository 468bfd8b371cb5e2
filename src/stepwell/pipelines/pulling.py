"""Plain functions of steps, as they run in the thread of their run: a call, or some items of a generator at a time."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from time import monotonic
from typing import Any, Final

from stepwell._runtime.threads import RunThread
from stepwell.pipelines.rejecting import Hearing, Rejection

MOST: Final = 100  # items that are pulled at a time
LONGEST: Final = 0.005  # seconds after which no further one is pulled


def is_plain(function: Callable[..., Any]) -> bool:
    """Whether it may block, and has to run in a thread."""
    return not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function))


def heard(hearing: Hearing, function: Callable[..., Any], item: Any) -> Any:
    """Call a function, with an ear for what it rejects."""
    with hearing:
        return function(item)


class Pull:
    """What a plain function gives for one item, pulled by turns.

    Its methods run in the thread; the loop looks at what they leave while none of them runs.
    """

    def __init__(self, thread: RunThread, hearing: Hearing) -> None:
        self._thread = thread
        self._hearing = hearing
        self._iterator: Iterator[Any] | None = None
        self.made: Any = None  # what the function returned, if that is not for a thread to go through
        self.is_for_loop = False
        self.items: deque[tuple[list[Rejection], Any]] = deque()  # pulled, each with what was rejected before it
        self.rejected: list[Rejection] = []  # after the last of them
        self.error: BaseException | None = None  # which comes after them
        self.is_over = False

    def begin(self, function: Callable[..., Any], item: Any) -> None:
        with self._hearing:
            made = function(item)
        self.go_on(made)

    def go_on(self, made: Any) -> None:
        if isinstance(made, Iterable) and not isinstance(made, AsyncIterable) and not inspect.isawaitable(made):
            self.made, self.is_for_loop = None, False
            self._iterator = iter(made)
            self.pull()
        else:
            self.made, self.is_for_loop = made, True

    def pull(self) -> None:
        """Pull until there are enough, or time is up."""
        assert self._iterator is not None  # noqa: S101 - it has begun
        until = monotonic() + LONGEST
        hearing = self._hearing
        try:
            with hearing:
                for item in self._iterator:
                    self.items.append((hearing.take(), item))
                    if len(self.items) >= MOST or self._thread.is_given_up or monotonic() >= until:
                        return
        except BaseException as error:  # noqa: BLE001 - raised by whoever goes through the items
            self.error = error
        self.is_over, self.rejected = True, hearing.take()

    def close(self) -> None:
        """Let a generator clear up, wherever it stands."""
        close = getattr(self._iterator, "close", None)
        if callable(close):
            with self._hearing:
                close()
