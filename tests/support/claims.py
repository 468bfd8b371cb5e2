"""Requests of claims, as tests write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepwell._store.operations.claim import ClaimRequest


def request(
    worker_id: int, limit: int, labels: Sequence[str], *, queue: str = "default", others: Sequence[str] = (),
    **options: Any
) -> ClaimRequest:  # fmt: skip
    """What to claim from one queue."""
    return ClaimRequest(worker_id=worker_id, queue=queue, limit=limit, labels=labels, passed_over=others, **options)
