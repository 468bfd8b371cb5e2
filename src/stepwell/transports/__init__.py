"""Transports: how a question goes out to the world, and how its answer comes back."""

from __future__ import annotations

from stepwell._core.interactions import Answer, Completion, Dispatch
from stepwell.errors import InvalidEnvelope, InvalidSignature, SendFailed, Undeliverable, UnknownDestination
from stepwell.transports.base import Admit, Transport
from stepwell.transports.inbox import Inbox
from stepwell.transports.kafka import Kafka
from stepwell.transports.nats import Nats
from stepwell.transports.signing import SIGNATURE_HEADER, verify_signature
from stepwell.transports.sqs import Sqs
from stepwell.transports.webhook import Webhook

__all__ = [
    "SIGNATURE_HEADER", "Admit", "Answer", "Completion", "Dispatch", "Inbox", "InvalidEnvelope", "InvalidSignature",
    "Kafka", "Nats", "SendFailed", "Sqs", "Transport", "Undeliverable", "UnknownDestination",
    "Webhook", "verify_signature",
]  # fmt: skip
