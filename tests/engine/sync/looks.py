"""Waiting in threads, which can not use `eventually`, for a condition that nobody announces."""

from __future__ import annotations

import threading
from collections.abc import Callable

PATIENCE = 30.0
LOOK_EVERY = 0.01


def until(condition: Callable[[], bool]) -> None:
    """Look until it holds."""
    rest = threading.Event()
    for _ in range(int(PATIENCE / LOOK_EVERY)):
        if condition():
            return
        rest.wait(LOOK_EVERY)
    raise AssertionError(f"not within {PATIENCE:g} s")
