"""Claims as the store would return them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from stepwell._core.instance import Claim


def make_claim(**changes: Any) -> Claim:
    """A first claim of instance 7 at `start`, with changes."""
    fields: dict[str, Any] = {
        "id": 7, "worker_id": 3, "fence": 11, "machine": "Order", "version": 1, "step": "start", "attempt": 0,
        "crashes": 0, "tenant": "", "key": None, "concurrency_key": None, "queue": "default",
        "claimed_at": datetime(2026, 1, 1, tzinfo=UTC),
    }  # fmt: skip
    return Claim(**{**fields, **changes})
