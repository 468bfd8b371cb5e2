"""The garbage collector's settings in a worker process: fewer objects, less often."""

from __future__ import annotations

import gc

PYTHONS_OWN = (700, 2_000)  # thresholds that Python sets by default, by version; others were set by the application
THRESHOLD = 10_000  # allocations; with 700, a busy worker spends a twentieth of its time in the collector


def reduce_work() -> None:
    """Freeze what is imported so far: collecting it would stop all steps for 4 to 30 ms now and then.

    The threshold is left as it is if the application has set one.
    """
    gc.collect()
    gc.freeze()
    often, *others = gc.get_threshold()
    if often in PYTHONS_OWN:
        gc.set_threshold(THRESHOLD, *others)
