"""Whether a worker has come to rest: what is looked at then is not changed by a claim that was under way."""

from __future__ import annotations

from stepwell._runtime.worker import Worker


def is_idle(worker: Worker) -> bool:
    """Whether it has nothing in hand, and no claim is under way or about to be."""
    rests = bool(worker._claimer._stirred._waiters)  # type: ignore[attr-defined]  # it waits to be woken
    return rests and worker.running == 0 and not any(lane.ready for lane in worker._lanes)
