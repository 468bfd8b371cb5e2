"""Transports: they send interactions to external systems, and bring completions back."""

from __future__ import annotations

from stepwell._core.interaction import Answer, Completion, Dispatch
from stepwell.errors import InvalidEnvelope, InvalidSignature, SendFailed, Undeliverable, UnknownDestination
from stepwell.transports.base import Admit, Transport
from stepwell.transports.kafka.transport import Kafka
from stepwell.transports.manual import Manual
from stepwell.transports.nats.transport import Nats
from stepwell.transports.sqs.transport import Sqs
from stepwell.transports.webhook.signatures import SIGNATURE_HEADER, verify_signature
from stepwell.transports.webhook.transport import Webhook

__all__ = [
    "SIGNATURE_HEADER",
    "Admit",
    "Answer",
    "Completion",
    "Dispatch",
    "InvalidEnvelope",
    "InvalidSignature",
    "Kafka",
    "Manual",
    "Nats",
    "SendFailed",
    "Sqs",
    "Transport",
    "Undeliverable",
    "UnknownDestination",
    "Webhook",
    "verify_signature",
]  # fmt: skip
