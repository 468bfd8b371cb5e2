"""The backend of Django's tasks: each task is an instance, enqueued in the caller's own transaction."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from inspect import iscoroutinefunction
from typing import Any, TypeVar, cast

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.core.checks import Warning as CheckWarning
from django.db import connections, transaction
from django.utils import timezone

from stepwell._core.validation import check_queue
from stepwell.contrib.django import engine
from stepwell.contrib.django.project import database_alias, served_queues
from stepwell.contrib.django.tasks.api import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_enqueued,
)
from stepwell.contrib.django.tasks.machine import DjangoTask
from stepwell.contrib.django.tasks.results import make_result, read_instance, result_of
from stepwell.contrib.django.tasks.state import TaskState
from stepwell.errors import InvalidInput, SettingError

MOST_ATTEMPTS = 1_000
LARGEST_ID = 2**63 - 1

T = TypeVar("T", list[Any], dict[str, Any])


class StepwellBackend(BaseTaskBackend):
    """`TASKS = {"default": {"BACKEND": "stepwell.contrib.django.tasks.StepwellBackend"}}`."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.max_attempts = _max_attempts(alias, self.options)

    def validate_task(self, task: Task[..., Any]) -> None:
        super().validate_task(task)
        try:
            check_queue(task.queue_name)
        except InvalidInput as error:
            raise InvalidTask(str(error)) from error

    def enqueue(self, task: Task[Any, Any], args: Any, kwargs: Any) -> TaskResult[Any, Any]:
        """Store the task; inside `transaction.atomic()` it is committed or rolled back with it."""
        self.validate_task(task)
        state = TaskState(
            task=task.module_path, args=_json(list(args)), kwargs=_json(dict(kwargs)),
            backend=self.alias, queue_name=task.queue_name, priority=task.priority, run_after=_aware(task.run_after),
            enqueued_at=datetime.now(UTC), max_attempts=self.max_attempts,
        )  # fmt: skip
        result = make_result(task, self._start(task, state), state, TaskResultStatus.READY)
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any, Any]:
        """The present result; also of a task of another process, or one that this transaction enqueued."""
        given = str(result_id)
        number = int(given) if given.isascii() and given.isdigit() and len(given) <= len(str(LARGEST_ID)) else 0
        instance = read_instance(number) if 0 < number <= LARGEST_ID else None
        if instance is None or instance.machine != DjangoTask.name or instance.state["backend"] != self.alias:
            raise TaskResultDoesNotExist(result_id)
        return result_of(instance)

    def check(self, **_: Any) -> list[CheckMessage]:
        """What is wrong, or looks wrong, with the entry in TASKS."""
        if not apps.is_installed("stepwell.contrib.django"):
            hint = "add 'stepwell.contrib.django' to INSTALLED_APPS, and run manage.py migrate"
            return [Error(f"TASKS[{self.alias!r}] needs the app of Stepwell", hint=hint, id="stepwell.E002")]
        return list(self._check_queues())

    def _check_queues(self) -> Iterable[CheckMessage]:
        try:
            served = served_queues()
        except SettingError:
            return  # stepwell.E001 reports it
        for queue in sorted(self.queues - set(served)):
            yield CheckWarning(
                f"TASKS[{self.alias!r}]['QUEUES'] has {queue!r}, which is not in STEPWELL['QUEUES']",
                hint=f"add it there, or start a worker of its own: manage.py stepwell worker --queue {queue}=10",
                id="stepwell.W001",
            )

    def _start(self, task: Task[Any, Any], state: TaskState) -> int:
        alias = database_alias()
        with transaction.atomic(using=alias):
            handle = engine.sync.start(
                DjangoTask, state, step="run_async" if iscoroutinefunction(task.func) else "run",
                queue=task.queue_name, priority=-task.priority, at=state.run_after, connection=connections[alias],
            )  # fmt: skip
        return handle.id


def _max_attempts(alias: str, options: dict[str, Any]) -> int:
    where = f"TASKS[{alias!r}]['OPTIONS']"
    for name in options:
        if name != "max_attempts":
            raise SettingError(f"{where}[{name!r}]", "is unknown (known: max_attempts)")
    given = options.get("max_attempts", 1)
    if not isinstance(given, int) or isinstance(given, bool) or not 1 <= given <= MOST_ATTEMPTS:
        raise SettingError(f"{where}['max_attempts']", f"{given!r} is not a whole number from 1 to {MOST_ATTEMPTS:,}")
    return given


def _json(values: T) -> T:
    """Arguments as plain JSON, by Django's rule: a value without JSON is a TypeError."""
    return cast(T, normalize_json(values))


def _aware(moment: datetime | None) -> datetime | None:
    """With a time zone, even if the project has USE_TZ = False."""
    if moment is None or timezone.is_aware(moment):
        return moment
    return timezone.make_aware(moment)
