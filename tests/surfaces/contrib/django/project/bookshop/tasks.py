"""Tasks of the shop."""

import asyncio
import threading

import django
from django.db import connection

from bookshop.models import Order

if django.VERSION >= (6,):
    from django.tasks import TaskContext, task
else:
    from django_tasks import TaskContext, task


class OutOfPaper(Exception):
    """The printer's."""


@task
def print_label(order: int, *, copies: int = 1) -> dict[str, int]:
    return {"order": order, "copies": copies}


@task(queue_name="mail", priority=20)
def send_mail(to: str) -> str:
    return f"sent to {to}"


@task
async def send_mail_async(to: str) -> str:
    await asyncio.sleep(0)
    return f"sent to {to}"


@task
async def count_orders(title: str) -> int:
    return await Order.objects.filter(title=title).acount()


@task
def jam(page: int) -> None:
    raise OutOfPaper(f"page {page}")


@task
async def jam_async() -> None:
    raise OutOfPaper("async")


@task
def return_a_set() -> set[int]:
    return {1}


@task(takes_context=True)
def tell_context(context: TaskContext, word: str) -> dict[str, object]:
    result = context.task_result
    return {
        "word": word,
        "id": result.id,
        "attempt": context.attempt,
        "status": str(result.status),
        "path": result.task.module_path,
        "has_started": result.started_at is not None and result.enqueued_at is not None,
    }


@task(takes_context=True, backend="patient")
def succeed_the_third_time(context: TaskContext) -> int:
    if context.attempt < 3:
        raise OutOfPaper(f"attempt {context.attempt}")
    return context.attempt


@task
def backend_pid() -> int:
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        return int(cursor.fetchone()[0])


def no_task() -> None:
    """A function that is no task."""


class Gate:
    """Where a task of a test reports that it runs, and waits."""

    reached = threading.Event()
    opened = threading.Event()


@task
def wait_at_gate() -> str:
    Gate.reached.set()
    assert Gate.opened.wait(30)
    return "through"


@task(queue_name="mail")
def note(word: str) -> None:
    NOTES.append(word)


NOTES: list[str] = []
