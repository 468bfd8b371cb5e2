"""Results of Django's tasks: found by id, refreshed, refused; inside the caller's transaction; and its checks."""

from __future__ import annotations

from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.checks import run_checks
from django.db import connections, transaction
from django.test import override_settings

from stepwell import SettingError
from stepwell.contrib.django import engine, make_engine
from stepwell.contrib.django.tasks import StepwellBackend
from stepwell.contrib.django.tasks.api import (
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
    task_finished,
    task_started,
)
from tests.surfaces.contrib.django.conftest import Tasks, ended


def test_a_commit_makes_the_task_visible_with_everything_else(tasks: Tasks, worker: Any) -> None:
    from bookshop.models import Order  # noqa: PLC0415 - importable once the project is set up

    with transaction.atomic():
        Order.objects.create(title="Solaris")
        result = tasks.count_orders.enqueue("Solaris")
        seen_inside = tasks.count_orders.get_result(result.id).status
        seen_outside = engine.sync.insights.list(machine="django.task", limit=1).items

    assert seen_inside == TaskResultStatus.READY
    assert [instance.id for instance in seen_outside] != [int(result.id)]
    assert ended(result).return_value == 1


def test_a_rollback_leaves_nothing_of_the_task(tasks: Tasks) -> None:
    with transaction.atomic():
        result = tasks.print_label.enqueue(1)
        transaction.set_rollback(True)

    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()


def test_a_task_of_a_rolled_back_inner_block_is_gone_and_the_outer_one_stays(
    tasks: Tasks, worker: Any
) -> None:
    with transaction.atomic():
        outer = tasks.print_label.enqueue(1)
        with transaction.atomic():
            inner = tasks.print_label.enqueue(2)
            transaction.set_rollback(True)

    assert ended(outer).return_value["order"] == 1
    with pytest.raises(TaskResultDoesNotExist):
        inner.refresh()


def test_a_refused_task_does_not_break_the_transaction_of_its_caller(tasks: Tasks, worker: Any) -> None:
    with transaction.atomic():
        with pytest.raises(ValueError, match="NUL"):
            tasks.send_mail.enqueue("\x00")
        result = tasks.print_label.enqueue(5)

    assert ended(result).return_value["order"] == 5


@pytest.mark.parametrize("unknown", ["999999999", "0", "-1", "abc", "", "²", str(2**63), "1.5", "9" * 5_000])
def test_an_unknown_result_raises_does_not_exist(tasks: Tasks, unknown: str) -> None:
    with pytest.raises(TaskResultDoesNotExist):
        tasks.print_label.get_result(unknown)


def test_an_instance_of_another_machine_is_no_result(tasks: Tasks) -> None:
    other = engine.sync.start("post_parcel", {"order": 1}, queue="nobody's")

    with pytest.raises(TaskResultDoesNotExist):
        tasks.print_label.get_result(str(other.id))


def test_a_result_of_another_backend_is_not_found_in_this_one(tasks: Tasks) -> None:
    result = tasks.send_mail.enqueue("ada@example.org")

    with pytest.raises(TaskResultDoesNotExist):
        tasks.succeed_the_third_time.get_backend().get_result(result.id)


async def test_every_method_of_a_task_has_an_async_twin(tasks: Tasks, worker: Any) -> None:
    result = await tasks.print_label.aenqueue(9)
    await sync_to_async(engine.sync.wait)(int(result.id), timeout=30)

    await result.arefresh()
    again = await tasks.print_label.aget_result(result.id)
    await sync_to_async(connections.close_all)()
    assert result.return_value == again.return_value == {"order": 9, "copies": 1}


def test_djangos_signals_are_sent(tasks: Tasks, worker: Any) -> None:
    sent: list[tuple[str, str, str]] = []

    def listen(name: str) -> Any:
        def hear(sender: Any, task_result: Any, **_: Any) -> None:
            sent.append((name, sender.__name__, str(task_result.status)))

        return hear

    signals = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}
    heard = {name: listen(name) for name in signals}
    for name, signal in signals.items():
        signal.connect(heard[name])
    try:
        ended(tasks.print_label.enqueue(1))
        ended(tasks.jam_async.enqueue())
    finally:
        for name, signal in signals.items():
            signal.disconnect(heard[name])

    backend = StepwellBackend.__name__
    assert [one for one in sent if one[0] == "enqueued"] == [("enqueued", backend, "READY")] * 2
    assert [one for one in sent if one[0] != "enqueued"] == [  # a worker may exist before the caller has declared so
        ("started", backend, "RUNNING"), ("finished", backend, "SUCCESSFUL"),
        ("started", backend, "RUNNING"), ("finished", backend, "FAILED"),
    ]  # fmt: skip


def test_a_queue_that_no_worker_of_the_project_serves_is_a_warning(tasks: Tasks) -> None:
    with override_settings(STEPWELL={"QUEUES": {"default": 5}}):
        messages = tasks.print_label.get_backend().check()

    assert [message.id for message in messages] == ["stepwell.W001"]
    assert "'mail'" in messages[0].msg


def test_a_backend_without_the_app_is_an_error(tasks: Tasks) -> None:
    with override_settings(INSTALLED_APPS=["bookshop"]):
        messages = tasks.print_label.get_backend().check()

    assert [message.id for message in messages] == ["stepwell.E002"]


def test_the_project_passes_its_checks(tasks: Tasks) -> None:
    assert run_checks() == []


@pytest.mark.parametrize(("options", "named"), [
    ({"max_attempts": 0}, "TASKS['mine']['OPTIONS']['max_attempts']"),
    ({"max_attempts": "3"}, "TASKS['mine']['OPTIONS']['max_attempts']"),
    ({"retries": 3}, "TASKS['mine']['OPTIONS']['retries']"),
])  # fmt: skip
def test_a_bad_option_is_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingError) as caught:
        StepwellBackend("mine", {"OPTIONS": options})

    assert caught.value.setting == named


def test_the_machine_of_tasks_exists_only_with_a_stepwell_backend(tasks: Tasks) -> None:
    dummy = {"default": {"BACKEND": "bookshop.backends.Elsewhere"}}

    with override_settings(TASKS=dummy):
        without = make_engine()

    assert "django.task" not in {definition.name for definition in without._registry.all()}
    assert "django.task" in {definition.name for definition in make_engine()._registry.all()}
