"""The backend of Django's tasks: the same tests on Django 6 and on the backport."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import SuspiciousOperation
from django.test import override_settings
from django.utils import timezone

from stepwell import Status
from stepwell.contrib.django import engine, make_engine
from stepwell.contrib.django.tasks.api import InvalidTask, TaskResultStatus
from tests.surfaces.contrib.django.conftest import PROJECT, Tasks, ended, environment


def test_the_backend_supports_every_feature_of_django(tasks: Tasks) -> None:
    backend = tasks.print_label.get_backend()

    flags = ("supports_defer", "supports_async_task", "supports_get_result", "supports_priority")
    assert [getattr(backend, flag) for flag in flags] == [True] * 4


def test_a_task_runs_and_its_result_can_be_read(tasks: Tasks, worker: Any) -> None:
    before = timezone.now()
    result = tasks.print_label.enqueue(7, copies=2)

    at_first = result.status, result.is_finished, result.args, result.kwargs
    ended(result)
    assert at_first == (TaskResultStatus.READY, False, [7], {"copies": 2})
    assert (result.status, result.return_value) == (TaskResultStatus.SUCCESSFUL, {"order": 7, "copies": 2})
    assert (result.errors, result.attempts, result.worker_ids) == ([], 1, [str(worker.id)])
    assert before <= result.enqueued_at <= result.started_at <= result.finished_at <= timezone.now()
    assert result.last_attempted_at == result.started_at


def test_an_async_task_runs_in_the_loop(tasks: Tasks, worker: Any) -> None:
    result = ended(tasks.send_mail_async.enqueue("ada@example.org"))

    assert result.return_value == "sent to ada@example.org"
    assert engine.sync.get(int(result.id)).step == "run_async"


def test_an_async_task_may_use_the_models(tasks: Tasks, worker: Any) -> None:
    assert ended(tasks.count_orders.enqueue("no such title")).return_value == 0


@pytest.mark.parametrize("task", ["jam", "jam_async"])
def test_a_task_that_raises_has_failed_at_once(tasks: Tasks, worker: Any, task: str) -> None:
    """Django's tasks are not retried unless TASKS says so."""
    result = ended(getattr(tasks, task).enqueue(*([3] if task == "jam" else [])))

    [error] = result.errors
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 1)
    assert error.exception_class is tasks.OutOfPaper
    assert "raise OutOfPaper(" in error.traceback
    assert result.finished_at is not None
    with pytest.raises(ValueError, match="Task failed"):
        result.return_value  # noqa: B018 - raises


def test_a_task_that_takes_the_context_gets_its_own_result(tasks: Tasks, worker: Any) -> None:
    result = ended(tasks.tell_context.enqueue("hello"))

    assert result.return_value == {
        "word": "hello", "id": result.id, "attempt": 1, "status": "RUNNING", "path": "bookshop.tasks.tell_context",
        "has_started": True,
    }  # fmt: skip


def test_a_return_value_that_is_no_json_fails_the_task(tasks: Tasks, worker: Any) -> None:
    result = ended(tasks.return_a_set.enqueue())

    assert result.status == TaskResultStatus.FAILED
    assert result.errors[0].exception_class is TypeError


@pytest.mark.parametrize(("bad", "kind"), [({1, 2}, TypeError), (datetime.now(UTC), TypeError), ("\x00", ValueError)])
def test_arguments_that_cannot_be_stored_are_refused_and_nothing_is_stored(tasks: Tasks, bad: Any, kind: type) -> None:
    before = engine.sync.insights.list(machine="django.task").items

    with pytest.raises(kind):
        tasks.send_mail.enqueue(bad)

    assert engine.sync.insights.list(machine="django.task").items == before


def test_a_task_has_the_status_running_while_it_runs(tasks: Tasks, worker: Any) -> None:
    result = tasks.wait_at_gate.enqueue()
    assert tasks.Gate.reached.wait(30)

    result.refresh()
    meanwhile = result.status, result.worker_ids, result.finished_at, result.enqueued_at <= result.started_at
    tasks.Gate.opened.set()
    assert meanwhile == (TaskResultStatus.RUNNING, [str(worker.id)], None, True)
    assert ended(result).return_value == "through"


def test_higher_priorities_run_first(tasks: Tasks) -> None:
    """A higher priority in Django is a lower one in Stepwell."""
    words = [tasks.note.using(priority=p).enqueue(str(p)) for p in (0, -100, 100, 20)]

    with make_engine().sync as sync, sync.worker({"mail": 1}):
        for result in words:
            ended(result)

    assert tasks.NOTES == ["100", "20", "0", "-100"]
    assert [result.task.priority for result in words] == [0, -100, 100, 20]
    assert engine.sync.get(int(words[2].id)).priority == -100


def test_the_queue_of_a_task_is_the_queue_of_its_instance(tasks: Tasks) -> None:
    result = tasks.send_mail.enqueue("ada@example.org")

    instance = engine.sync.get(int(result.id))
    read = tasks.send_mail.get_result(result.id)
    assert (instance.queue, instance.priority) == ("mail", -20)
    assert (read.task.queue_name, read.task.priority) == ("mail", 20)


def test_a_task_does_not_run_before_its_time(tasks: Tasks, worker: Any) -> None:
    later = timezone.now() + timedelta(hours=2)

    result = tasks.print_label.using(run_after=later).enqueue(1)

    instance = engine.sync.get(int(result.id))
    read = tasks.print_label.get_result(result.id)
    assert (instance.due_at, str(instance.hold)) == (later, "due")
    assert (read.status, read.started_at, read.task.run_after) == (TaskResultStatus.READY, None, later)


def test_a_project_without_time_zones_has_naive_times(tasks: Tasks) -> None:
    """USE_TZ = False: Django's times are naive and local, Stepwell's are not."""
    with override_settings(USE_TZ=False):
        later = timezone.now() + timedelta(hours=2)
        result = tasks.print_label.using(run_after=later).enqueue(1)
        read = tasks.print_label.get_result(result.id)

    instance = engine.sync.get(int(result.id))
    assert timezone.make_naive(instance.due_at) == read.task.run_after == later
    assert (result.enqueued_at.tzinfo, read.enqueued_at) == (None, result.enqueued_at)


@pytest.mark.parametrize("wrong", [
    lambda task: task.using(priority=101),
    lambda task: task.using(queue_name="unknown"),
    lambda task: task.using(run_after=datetime(2030, 1, 1)),  # noqa: DTZ001 - the point of the test
])  # fmt: skip
def test_a_task_that_the_backend_cannot_run_is_refused_when_it_is_made(
    tasks: Tasks, wrong: Callable[[Any], Any]
) -> None:
    with pytest.raises(InvalidTask):
        wrong(tasks.print_label)


def test_a_task_is_retried_if_its_backend_is_configured_so(tasks: Tasks, worker: Any) -> None:
    result = tasks.succeed_the_third_time.enqueue()

    waiting = []
    for attempt in (1, 2):
        _raised(result, attempt)
        waiting.append((result.status, len(result.errors)))
        engine.sync.retry(int(result.id))  # now, and not when it is due
    ended(result)
    assert waiting == [(TaskResultStatus.READY, 1), (TaskResultStatus.READY, 2)]
    assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, 3, 3)
    assert [error.exception_class for error in result.errors] == [tasks.OutOfPaper] * 2
    assert ["attempt 1" in error.traceback for error in result.errors] == [True, False]
    assert result.started_at < result.last_attempted_at


def _raised(result: Any, times: int) -> None:
    """Wait until the task has raised this number of times."""
    for _ in range(3_000):
        result.refresh()
        if len(result.errors) == times and result.status == TaskResultStatus.READY:
            return
        engine.sync.wait(int(result.id), timeout=0.01)
    raise AssertionError(f"raised {len(result.errors)} times, is {result.status}")


def test_a_task_that_is_cancelled_has_failed(tasks: Tasks) -> None:
    from stepwell import InstanceCancelled  # noqa: PLC0415 - the class that the error names

    result = tasks.send_mail.enqueue("ada@example.org")
    engine.sync.cancel(int(result.id), reason="not needed")

    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert result.errors[0].exception_class is InstanceCancelled
    assert "not needed" in result.errors[0].traceback
    assert engine.sync.get(int(result.id)).status is Status.CANCELLED


def start_task(path: str, **options: Any) -> Any:
    """An instance that names a task, as a role that may write rows makes it."""
    state = {
        "task": path, "args": [], "kwargs": {}, "backend": "default", "queue_name": "default", "priority": 0,
        "run_after": None, "enqueued_at": timezone.now().isoformat(),
    }  # fmt: skip
    return engine.sync.start("django.task", state, **options)


@pytest.mark.parametrize(("path", "kind"), [
    ("bookshop.tasks.gone", "SuspiciousOperation"),
    ("bookshop.tasks.Gate.reached", "SuspiciousOperation"),
    ("bookshop.posting.task", "SuspiciousOperation"),
    ("nowhere.tasks.gone", "SuspiciousOperation"),
    ("gone", "SuspiciousOperation"),
    ("", "SuspiciousOperation"),
    ("bookshop.tasks.no_task", "SuspiciousOperation"),
    ("os.getcwd", "SuspiciousOperation"),
])  # fmt: skip
def test_a_row_cannot_have_anything_called_but_tasks(tasks: Tasks, worker: Any, path: str, kind: str) -> None:
    instance = start_task(path).wait(timeout=30)

    assert instance.status is Status.FAILED
    assert instance.error is not None
    assert instance.error.type == kind


NOT_IMPORTED = ["this.s", "turtledemo.clock.main", "bookshop.late.print_late", "bookshop.late.gone", "antigravity.x"]


@pytest.mark.parametrize("path", NOT_IMPORTED)
def test_a_row_cannot_have_a_module_imported(tasks: Tasks, worker: Any, path: str) -> None:
    module = path.rpartition(".")[0]
    assert module not in sys.modules

    instance = start_task(path).wait(timeout=30)

    assert instance.status is Status.FAILED
    assert instance.error is not None
    assert instance.error.message.startswith(f"{path} is no task of this process; define it in the module tasks of an")
    assert module not in sys.modules


def test_reading_a_result_imports_no_module(tasks: Tasks) -> None:
    handle = start_task("this.s", queue="nobody's")

    with pytest.raises(SuspiciousOperation, match=r"this\.s is no task of this process"):
        tasks.print_label.get_result(str(handle.id))

    assert "this" not in sys.modules


def test_a_process_of_the_command_line_knows_the_tasks_of_all_apps(project: str) -> None:
    code = "from stepwell.contrib.django import make_engine; make_engine()"
    looks = "import sys; print('bookshop.tasks' in sys.modules)"

    ran = subprocess.run(
        [sys.executable, "-c", f"{code}; {looks}"], cwd=PROJECT,
        env=environment(project, DJANGO_SETTINGS_MODULE="bookshop_settings"),
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip

    assert ran.stdout == "True\n", ran.stderr


def test_an_app_with_tasks_that_cannot_be_imported_is_logged_and_stops_none(
    tasks: Tasks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "__init__.py").write_text("")
    (tmp_path / "foreign" / "tasks.py").write_text("import a_queue_that_is_not_installed\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    with override_settings(INSTALLED_APPS=[*settings.INSTALLED_APPS, "foreign"]):
        make_engine()

    assert "cannot import foreign.tasks, its tasks cannot run" in caplog.text
