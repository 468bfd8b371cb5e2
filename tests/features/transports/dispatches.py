"""Interactions for transports to send."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from stepwell.transports import Dispatch

SECRET = "a secret of at least thirty-two bytes"  # noqa: S105 - of these tests


def make_dispatch(**changes: Any) -> Dispatch:
    """An interaction with every field set."""
    fields: dict[str, Any] = {
        "interaction_id": "int-1", "correlation_id": "cor-1", "tenant": "acme", "instance_id": 42, "machine": "Order",
        "step": "pay", "transport": "payments", "index": None, "request": {"amount": "12.50", "to": "Zoë"},
        "reply_type": "PaymentStatus", "reply_schema": None, "idempotency_key": "42:pay", "attempt": 1,
        "deadline": datetime(2030, 1, 1, tzinfo=UTC), "token": "sw1.k.p.s",
    }  # fmt: skip
    return Dispatch(**{**fields, **changes})
