"""From an instance to Django's TaskResult."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.db import connections
from django.utils import timezone

from stepwell import errors
from stepwell._core.instance import Instance
from stepwell._core.status import Status
from stepwell._store.instances import read_over
from stepwell.contrib.django.discovery import TASKS
from stepwell.contrib.django.project import database_alias, schema_name
from stepwell.contrib.django.tasks.api import InvalidTask, Task, TaskError, TaskResult, TaskResultStatus
from stepwell.contrib.django.tasks.known import known_task
from stepwell.contrib.django.tasks.state import Attempt, TaskState

STATUSES = {
    Status.DONE: TaskResultStatus.SUCCESSFUL,
    Status.FAILED: TaskResultStatus.FAILED,
    Status.CANCELLED: TaskResultStatus.FAILED,
    Status.EXECUTING: TaskResultStatus.RUNNING,
}  # all others are READY: they run, or run again, when they are due


def read_instance(instance_id: int) -> Instance | None:
    """Read over Django's own connection, which also sees what this transaction has not committed yet."""

    def send(sql: str, ids: list[int]) -> Sequence[Mapping[str, Any]]:
        with connections[database_alias()].cursor() as cursor:
            cursor.execute(sql, [ids])
            names = [column[0] for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    found = read_over(send, [instance_id], schema_name())
    return found[0] if found else None


def result_of(instance: Instance) -> TaskResult[..., Any]:
    """The TaskResult of an instance."""
    state = msgspec.convert(instance.state, TaskState)
    attempts = state.attempts
    if instance.status is Status.EXECUTING:  # the claim was the last change of its row
        attempts = [*attempts, Attempt(str(instance.worker_id), instance.updated_at)]
    status = STATUSES.get(instance.status, TaskResultStatus.READY)
    result = make_result(find_task(state), instance.id, state, status, attempts, finished_at=instance.finished_at)
    result.errors.extend(_errors(instance, state))
    object.__setattr__(result, "_return_value", instance.result)
    return result


def make_result(
    task: Task[..., Any],
    instance_id: int,
    state: TaskState,
    status: TaskResultStatus,
    attempts: Sequence[Attempt] = (),
    finished_at: datetime | None = None,
) -> TaskResult[..., Any]:
    """A result without errors and return value."""
    return TaskResult(
        task=task,
        id=str(instance_id),
        status=status,
        enqueued_at=as_django_has_it(state.enqueued_at),
        started_at=as_django_has_it(attempts[0].started_at) if attempts else None,
        last_attempted_at=as_django_has_it(attempts[-1].started_at) if attempts else None,
        finished_at=None if finished_at is None else as_django_has_it(finished_at),
        args=state.args,
        kwargs=state.kwargs,
        backend=state.backend,
        errors=[],
        worker_ids=[attempt.worker for attempt in attempts],
    )


def find_task(state: TaskState) -> Task[..., Any]:
    """The task of that path, as it was enqueued. Only tasks of imported modules are found: a row can neither
    cause an import nor call anything else.
    """
    found = known_task(state.task)
    if found is None:
        raise SuspiciousOperation(
            f"{state.task} is no task of this process; define it in the module {TASKS} of an installed app, or import "
            "its module there"
        )
    run_after = None if state.run_after is None else as_django_has_it(state.run_after)
    try:
        return replace(
            found, priority=state.priority, queue_name=state.queue_name, backend=state.backend, run_after=run_after
        )
    except InvalidTask:  # TASKS has changed since it was enqueued; the task itself has not
        return found


def as_django_has_it(moment: datetime) -> datetime:
    """Without a time zone if the project has USE_TZ = False."""
    return moment if settings.USE_TZ or timezone.is_naive(moment) else timezone.make_naive(moment)


def _errors(instance: Instance, state: TaskState) -> list[TaskError]:
    """One per attempt that raised; the last one of a failed task is the instance's own error."""
    found = [
        TaskError(exception_class_path=str(attempt.exception), traceback=attempt.traceback)
        for attempt in state.attempts
        if attempt.traceback is not None
    ]
    if instance.error is not None and STATUSES.get(instance.status) is TaskResultStatus.FAILED:
        last = state.attempts[-1].exception if state.attempts else None
        path = last if last and last.endswith(f".{instance.error.type}") else _path(instance)
        found.append(TaskError(exception_class_path=path, traceback=instance.error.traceback or instance.error.message))
    return found


def _path(instance: Instance) -> str:
    """The class of an error that no attempt recorded: ours, one of Python's, or a stand-in for the status."""
    kind = "" if instance.error is None else instance.error.type
    for module in (errors, builtins):
        if isinstance(getattr(module, kind, None), type):
            return f"{module.__name__}.{kind}"
    ended = errors.InstanceCancelled if instance.status is Status.CANCELLED else errors.InstanceFailed
    return f"{ended.__module__}.{ended.__qualname__}"
