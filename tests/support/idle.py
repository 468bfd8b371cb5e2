"""Whether a worker is idle: what a test reads then is not changed by a running claim."""

from __future__ import annotations

from stepwell._worker.worker import Worker


def is_idle(worker: Worker) -> bool:
    """Whether it has no claims, and no claim is running or about to be."""
    rests = bool(worker._graph.claimer._stirred._waiters)  # type: ignore[attr-defined]  # it waits to be woken
    return rests and worker.running == 0 and not any(lane.backlog.ready for lane in worker._graph.all_queue_slots)
