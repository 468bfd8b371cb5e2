"""Transports: how a question goes out to the world, and how its answer comes back."""

from __future__ import annotations

from stepwell._core.interactions import Answer, Completion, Dispatch
from stepwell.errors import Undeliverable
from stepwell.transports.base import Admit, Transport
from stepwell.transports.inbox import Inbox

__all__ = ["Admit", "Answer", "Completion", "Dispatch", "Inbox", "Transport", "Undeliverable"]
