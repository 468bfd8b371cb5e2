"""Waiting in threads, which cannot use `eventually`, for a condition without a notification."""

from __future__ import annotations

import threading
from collections.abc import Callable

PATIENCE = 30.0
LOOK_EVERY = 0.01


def until(condition: Callable[[], bool]) -> None:
    """Check until it holds."""
    rest = threading.Event()
    for _ in range(int(PATIENCE / LOOK_EVERY)):
        if condition():
            return
        rest.wait(LOOK_EVERY)
    raise AssertionError(f"not within {PATIENCE:g} s")
