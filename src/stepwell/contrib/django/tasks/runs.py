"""One run of a task: the arguments of its function, and what follows from its end."""

from __future__ import annotations

import traceback
from datetime import UTC, datetime
from typing import Any

from stepwell.context import Context
from stepwell.contrib.django.tasks.api import TaskContext, TaskError, TaskResultStatus
from stepwell.contrib.django.tasks.results import as_django_has_it, find_task, make_result
from stepwell.contrib.django.tasks.state import Attempt, TaskState
from stepwell.job import exponential
from stepwell.outcomes import Done, Outcome, Retry, Stop

MAX_TRACEBACK = 20_000


class Run:
    """The task, its present result, and the attempt under way."""

    def __init__(self, ctx: Context[TaskState]) -> None:
        self._state = ctx.state
        self.task = find_task(ctx.state)
        self._attempt = Attempt(str(ctx.worker_id), datetime.now(UTC))
        attempts = [*ctx.state.attempts, self._attempt]
        self.result = make_result(self.task, ctx.id, ctx.state, TaskResultStatus.RUNNING, attempts)
        self.sender = type(self.task.get_backend())

    @property
    def args(self) -> list[Any]:
        before = [TaskContext(task_result=self.result)] if self.task.takes_context else []
        return [*before, *self.result.args]

    @property
    def kwargs(self) -> dict[str, Any]:
        return self.result.kwargs

    def succeed(self, value: Any) -> Outcome:
        """The task returned."""
        self._state.attempts.append(self._attempt)
        self._end(TaskResultStatus.SUCCESSFUL)
        object.__setattr__(self.result, "_return_value", value)
        return Done(value)

    def fail(self, error: Exception) -> Outcome:
        """The task raised: it has failed, unless it may be tried again."""
        self._state.attempts.append(self._attempt)
        self._attempt.exception = f"{type(error).__module__}.{type(error).__qualname__}"
        text = "".join(traceback.format_exception(error))[-MAX_TRACEBACK:]
        self.result.errors.append(TaskError(exception_class_path=self._attempt.exception, traceback=text))
        raised = sum(attempt.exception is not None for attempt in self._state.attempts)
        if raised < self._state.max_attempts:
            self._attempt.traceback = text.replace("\x00", "\\x00").encode("utf-8", "replace").decode()
            object.__setattr__(self.result, "status", TaskResultStatus.READY)
            return Retry(exponential(raised - 1))
        self._end(TaskResultStatus.FAILED)
        return Stop(error)

    def _end(self, status: TaskResultStatus) -> None:
        object.__setattr__(self.result, "status", status)  # it is frozen for its users, not for backends
        object.__setattr__(self.result, "finished_at", as_django_has_it(datetime.now(UTC)))
