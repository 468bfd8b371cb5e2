"""The state of a task: which one, how it was enqueued, and the attempts that have ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass
class Attempt:
    """One run that ended, well or not. A run that ended with its worker's crash leaves none."""

    worker: str
    started_at: datetime
    exception: str | None = None  # the dotted path of its class
    traceback: str | None = None  # kept here only if another attempt followed: the last one is the instance's error


@dataclass
class TaskState:
    """The state of the machine that runs Django's tasks."""

    task: str  # the dotted path of its function
    args: list[Any]
    kwargs: dict[str, Any]
    backend: str  # the alias in TASKS
    queue_name: str
    priority: int  # as in Django: higher first
    run_after: datetime | None
    enqueued_at: datetime
    max_attempts: int = 1
    attempts: list[Attempt] = field(default_factory=list)
