"""The collector of circles, in a process that only works: it looks at less, and not as often."""

from __future__ import annotations

import gc

_AT_FIRST = gc.get_threshold()  # before any application is loaded
BETWEEN_LOOKS = 10_000  # more objects than at the last; with Python's own 700 they take a twentieth of a busy worker


def relieve() -> None:
    """What is imported by now stays: to look through it for circles stops all steps for 4 to 30 ms, now and then. How
    often it looks at the rest is left as it is where an application has said it."""
    gc.collect()
    gc.freeze()
    if gc.get_threshold() == _AT_FIRST:
        gc.set_threshold(max(BETWEEN_LOOKS, _AT_FIRST[0]), *_AT_FIRST[1:])
