"""The collector of circles, in a process that only works: it looks at less, and not as often."""

from __future__ import annotations

import gc

PYTHONS_OWN = (700, 2_000)  # new objects after which it looks, unless somebody has said otherwise; by version
BETWEEN_LOOKS = 10_000  # with 700, a twentieth of a busy worker's time goes into its looks


def relieve() -> None:
    """What is imported by now stays: to look through it for circles stops all steps for 4 to 30 ms, now and then. How
    often it looks at the rest is left as it is where an application has said it."""
    gc.collect()
    gc.freeze()
    often, *others = gc.get_threshold()
    if often in PYTHONS_OWN:
        gc.set_threshold(BETWEEN_LOOKS, *others)
