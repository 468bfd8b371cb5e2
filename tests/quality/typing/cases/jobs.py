"""Jobs: their arguments are those of the function, their result is what it returns, awaited."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, assert_type

from stepwell import Engine, Handle, Job, job
from stepwell.outcomes import Entry


@dataclass
class Receipt:
    number: int


@job
async def send_mail(to: str, copies: int = 1) -> Receipt:
    return Receipt(copies)


@job(queue="slow", max_attempts=3, timeout=timedelta(seconds=5))
async def render(page: int) -> bytes:
    return b""


@job
def add(left: int, right: int = 2) -> int:
    return left + right


@job(queue="slow")
def subtract(left: int, right: int) -> float:
    return left - right


@job
async def tell() -> None: ...


def takes_any_job_of_an_int(given: Job[..., int]) -> None: ...


async def arguments_are_checked() -> None:
    send_mail.args(to="ada@example.org")
    send_mail.args("ada@example.org", copies=2)
    render.args(page=1)
    tell.args()
    send_mail.args(to=1)  # error
    send_mail.args()  # error
    send_mail.args(to="ada", copy=1)  # error
    send_mail.args("ada", "two")  # error
    render.args("1")  # error
    tell.args(1)  # error


async def a_call_is_a_call_of_the_function() -> None:
    assert_type(add(1), int)
    assert_type(subtract(1, 2), float)
    running: Coroutine[Any, Any, Receipt] = send_mail("ada")
    assert_type(await running, Receipt)
    assert_type(await render(1), bytes)
    add("1")  # error
    await send_mail(to=1)  # error


async def results_are_typed(engine: Engine) -> None:
    mail = await engine.start(send_mail, send_mail.args(to="ada"))
    assert_type(mail, Handle[Receipt])
    assert_type(await mail.result(timeout=5), Receipt)
    assert_type((await mail.result()).number, int)
    assert_type(await (await engine.start(add, {"left": 1}, key="sum")).result(), int)
    assert_type(await (await engine.start(subtract)).result(), float)
    assert_type(await (await engine.start(render)).result(), bytes)
    assert_type(await engine.signal_or_start(add, {"left": 1}, key="sum", signal="go"), Handle[int])
    number = (await mail.result()).nummer  # error
    words: str = await mail.result()  # error
    handle: Handle[int] = mail  # error
    assert [number, words, handle]


async def handles_of_known_jobs_are_typed(engine: Engine) -> None:
    assert_type(engine.handle(7, send_mail), Handle[Receipt])
    assert_type(engine.handle(7), Handle[Any])
    assert_type(engine.handle(7, "send_mail"), Handle[Any])
    engine.handle("key")  # error


async def jobs_are_jobs() -> None:
    takes_any_job_of_an_int(add)
    takes_any_job_of_an_int(send_mail)  # error
    assert_type(add.child({"left": 1}, key="sum", priority=3), Entry[int])
    add.child({"left": 1}, kye="sum")  # error
    add.child({"left": 1}, priority="high")  # error
    add.child({"left": 1}, key_scope="always")  # error
    job(queue=3)  # error
    job(max_attempt=3)  # error
    job(42)  # error


async def many_have_the_results_of_their_jobs(engine: Engine) -> None:
    for started in await engine.start_many([add.child({"left": 1}), add.child({"left": 2})]):
        if isinstance(started, Handle):
            assert_type(await started.result(), int)
    for anything in await engine.start_many([(add, {"left": 1}), ("add", {"left": 2}), add]):
        if isinstance(anything, Handle):
            assert_type(await anything.result(), Any)
    await engine.start_many([42])  # error
    await engine.start_many([(42, {})])  # error
