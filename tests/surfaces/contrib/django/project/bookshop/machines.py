"""Machines that are found because they are in this module."""

import threading
from dataclasses import dataclass

from django.db import connection, connections, transaction

from bookshop.models import Order
from stepwell import Context, Done, Machine, Next, job, step
from stepwell.contrib.django import engine  # noqa: F401 - machines may import the engine that is made of them


class Fulfil(Machine):
    @dataclass
    class State:
        order: int

    @step
    def start(self, ctx: Context[State]) -> Next:
        Order.objects.filter(id=ctx.state.order).update(step="packed")
        return Next(self.ship)

    @step
    def ship(self, ctx: Context[State]) -> Done:
        order = Order.objects.get(id=ctx.state.order)
        order.step = "shipped"
        order.save()
        return Done(order.title)


@job
def backend_pid() -> int:
    """Which connection of the server this step has, and whether it works."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        return int(cursor.fetchone()[0])


@job(max_attempts=1)
def break_connection() -> None:
    """End the own connection, as a restart of the server would."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_terminate_backend(pg_backend_pid())")


@job
def leave_open(title: str) -> list[object]:
    """Enter a transaction and never leave it."""
    transaction.atomic().__enter__()
    Order.objects.create(title=title)
    return [connection.in_atomic_block, threading.get_ident()]


@job
def leave_autocommit_off(title: str) -> None:
    transaction.set_autocommit(False)
    Order.objects.create(title=title)


@job
def look(title: str) -> list[object]:
    """What a step finds: an open transaction, another step's order, and its thread."""
    found = Order.objects.filter(title=title).count()
    return [connection.in_atomic_block, found, threading.get_ident()]


@job
def hang_up() -> None:
    """Close what Django would keep; the thread ends with the worker."""
    connections.close_all()
