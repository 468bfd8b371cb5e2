"""Assertions about instances, with a report of what they did instead."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from stepwell._client.client import Handle
from stepwell._core.instance import Instance
from stepwell._core.status import Hold, Status
from stepwell.engine import Engine
from stepwell.errors import InvalidInput, NotFound

Target: TypeAlias = "int | str | Handle[Any] | Instance"
"""An instance by its id, its key, its handle, or an earlier snapshot of it."""
ErrorLike: TypeAlias = str | re.Pattern[str] | type[BaseException]

LAST_LINES = 6
OURS = "/stepwell/_worker/"  # in the frames of the code that calls a step
MOST_LISTED = 10
MOST_SHOWN = 300


class _Any:
    """Equal to everything."""

    def __repr__(self) -> str:
        return "ANY"


ANY: Final = _Any()


async def assert_done(engine: Engine, target: Target, result: Any = ANY, *, tenant: str | None = None) -> Instance:
    """The instance is done, with this result."""
    found = await _find(engine, target, tenant)
    if found.status is not Status.DONE:
        raise await _other(engine, found, "to be done")
    if result is not ANY and found.result != result:
        raise await _other(engine, found, f"to be done with the result\n    {_short(result)}\n  but the result is\n"
                           f"    {_short(found.result)}")
    return found


async def assert_failed(
    engine: Engine, target: Target, error: ErrorLike | None = None, *, tenant: str | None = None
) -> Instance:
    """The instance failed, with this error: a part of its text, a pattern, or an exception type."""
    found = await _find(engine, target, tenant)
    wanted = "" if error is None else f" with {_named(error)}"
    if found.status is not Status.FAILED or not _fits(found, error):
        raise await _other(engine, found, f"to have failed{wanted}")
    return found


async def assert_waiting(
    engine: Engine, target: Target, for_: str | Iterable[str] | None = None, *, tenant: str | None = None
) -> Instance:
    """The instance is parked: for this signal (or these), for "children", or, if not given, for anything."""
    found = await _find(engine, target, tenant)
    names = () if for_ is None else (for_,) if isinstance(for_, str) else tuple(for_)
    if not _waits(found, names):
        wanted = f" for {' and '.join(map(repr, names))}" if names else ""
        raise await _other(engine, found, f"to be waiting{wanted}")
    return found


async def assert_cancelled(
    engine: Engine, target: Target, reason: str | None = None, *, tenant: str | None = None
) -> Instance:
    """The instance was cancelled, for this reason."""
    found = await _find(engine, target, tenant)
    given = None if found.operated is None else found.operated.get("reason")
    if found.status is not Status.CANCELLED or (reason is not None and reason not in (given or "")):
        raise await _other(engine, found, "to be cancelled" + (f" because of {reason!r}" if reason else ""))
    return found


async def describe(engine: Engine, instance: Instance) -> str:
    """What an instance did and waits for, over several lines."""
    lines = [f"status: {instance.status}, at step {instance.step!r}, attempt {instance.attempt}"]
    if instance.crashes:
        lines[0] += f", {instance.crashes} crashes"
    if instance.status is Status.RUNNABLE and instance.hold is None:
        lines.append("waits for: a worker (call h.drain())")
    elif instance.waiting_for is not None:
        until = "" if instance.deadline is None else f", until {instance.deadline.isoformat(timespec='seconds')}"
        lines.append(f"waits for: {instance.waiting_for}{until}")
    if instance.status is Status.DONE:
        lines.append(f"result: {_short(instance.result)}")
    else:
        lines.append(f"state: {_short(instance.state)}")
    if instance.operated:
        lines.append(f"operator: {_short(instance.operated)}")
    lines += _error_lines(instance)
    inbox = await engine.insights.inbox(instance.id)
    lines += _listed("inbox", [f"{signal.name} {_short(signal.payload)}" for signal in inbox])
    family = await engine.insights.tree(instance.id)
    lines += _listed("children", [_line(child) for child, _ in family if child.parent_id == instance.id])
    return "\n".join(lines)


async def _find(engine: Engine, target: Target, tenant: str | None) -> Instance:
    if isinstance(target, Handle | Instance):
        target = target.id
    elif isinstance(target, bool) or not isinstance(target, int | str):
        raise InvalidInput("target", f"expected a handle, an id, a key or an instance, got {target!r}")
    try:
        return await engine.get(target, tenant=tenant)
    except NotFound as missing:
        there = (await engine.insights.list(limit=MOST_LISTED)).items
        listed = "\n".join(f"  {_line(instance)}" for instance in there)
        what = f"the newest are:\n{listed}" if listed else "no instance was started"
        raise AssertionError(f"{missing}; {what}") from None


async def _other(engine: Engine, found: Instance, wanted: str) -> AssertionError:
    key = "" if found.key is None else f" {found.key!r}"
    about = (await describe(engine, found)).replace("\n", "\n  ")
    return AssertionError(f"expected {found.machine} #{found.id}{key} {wanted}\n  {about}")


def _fits(found: Instance, error: ErrorLike | None) -> bool:
    if error is None or found.error is None:
        return error is None
    if isinstance(error, type):
        return found.error.type in (error.__name__, error.__qualname__, f"{error.__module__}.{error.__qualname__}")
    text = f"{found.error.type}: {found.error.message}"
    return error in text if isinstance(error, str) else error.search(text) is not None


def _waits(found: Instance, names: tuple[str, ...]) -> bool:
    match found.status:
        case Status.AWAITING_SIGNAL:
            return set(names) <= set(found.awaits)
        case Status.AWAITING_CHILDREN:
            return not set(names) - {"children"}
        case Status.RUNNABLE if found.hold is Hold.DUE:
            return not set(names) - {"time"}
        case Status.RUNNABLE | Status.EXECUTING | Status.DONE | Status.FAILED | Status.CANCELLED:
            return False
        case _:
            return not names


def _named(error: ErrorLike) -> str:
    return error.__name__ if isinstance(error, type) else repr(error)


def _error_lines(instance: Instance) -> list[str]:
    if instance.error is None:
        return []
    lines = [f"error: {instance.error.type}: {instance.error.message}"]
    return lines + [f"    {line}" for line in _traceback_end(instance.error.traceback or "")]


def _traceback_end(trace: str) -> list[str]:
    """The end of a traceback, and the step's own line before it if the end is deep in a library."""
    lines = trace.rstrip().splitlines()
    end = lines[-LAST_LINES:]
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    ours = [number for number in frames if OURS in lines[number]]
    own = next((number for number in frames if ours and number > ours[-1]), len(lines))
    return end if own >= len(lines) - LAST_LINES else [*lines[own : own + 2], "  …", *end]


def _line(instance: Instance) -> str:
    key = "" if instance.key is None else f" {instance.key!r}"
    waits = "" if instance.waiting_for is None else f", waits for {instance.waiting_for}"
    return f"{instance.machine} #{instance.id}{key} {instance.status} at {instance.step!r}{waits}"


def _listed(what: str, lines: list[str]) -> list[str]:
    if not lines:
        return [f"{what}: empty"] if what == "inbox" else []
    more = [f"    … and {len(lines) - MOST_LISTED} more"] if len(lines) > MOST_LISTED else []
    return [f"{what}:", *(f"    {line}" for line in lines[:MOST_LISTED]), *more]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"
