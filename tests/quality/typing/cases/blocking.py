"""Blocking code: the methods of `engine.sync` take what those of the engine take, and return the same without await."""

from __future__ import annotations

from typing import Any, assert_type

from stepwell import Duplicate, Engine, Instance, SyncHandle, job


@job
async def add(left: int, right: int = 2) -> int:
    return left + right


def starts_are_typed(engine: Engine) -> None:
    handle = engine.sync.start(add, add.args(1), key="sum", priority=3)
    assert_type(handle, SyncHandle[int])
    assert_type(handle.result(timeout=5), int)
    assert_type(handle.get(timeout=5), Instance)
    engine.sync.start(add, timeout="soon")  # error
    assert_type(handle.wait(until="settled"), Instance)
    assert_type(handle.cancel(reason="no"), bool)
    assert_type(engine.sync.signal_or_start(add, key="sum", signal="go"), SyncHandle[int])
    assert_type(engine.sync.handle(7, add), SyncHandle[int])
    assert_type(engine.sync.handle(7), SyncHandle[Any])
    engine.sync.start(add, kye="sum")  # error
    engine.sync.start(42)  # error
    handle.wait(until="ended")  # error
    words: str = handle.result()  # error
    assert words


def many_are_typed(engine: Engine) -> None:
    for started in engine.sync.start_many([add.child({"left": 1})]):
        assert_type(started, SyncHandle[int] | Duplicate)
    for anything in engine.sync.start_many([(add, {"left": 1}), ("add", {"left": 2}), add]):
        assert_type(anything, SyncHandle[Any] | Duplicate)
    engine.sync.start_many([42])  # error


def other_doors_are_typed(engine: Engine) -> None:
    assert_type(engine.sync.get("sum"), Instance)
    assert_type(engine.sync.check(), int)
    assert_type(engine.sync.insights.list(limit=3).items, list[Instance])
    assert_type(next(engine.sync.insights.each(machine="add")), Instance)
    with engine.sync as sync, sync.worker({"default": 3}) as worker:
        assert_type(worker.running, int)
    engine.sync.signal("sum")  # error
    engine.sync.get()  # error
