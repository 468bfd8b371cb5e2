"""`stepwell show`: everything about one instance."""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from stepwell import Failure, Instance, Status
from stepwell._cli.app import add_engine_flags, chosen_engine
from stepwell._cli.exit_codes import OK
from stepwell._cli.output import Paint, brief, pretty, printable, record, to_json, waits
from stepwell._cli.targets import add_target, chosen_target
from stepwell.engine import Engine

EXAMPLES = """\
examples:
  stepwell show 42
  stepwell show --key order:42 --json | jq .state"""

INDENT = "  "


def configure(parser: ArgumentParser) -> None:
    add_target(parser)
    add_engine_flags(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = EXAMPLES


def run(args: Namespace) -> int:
    return asyncio.run(_show(chosen_engine(args), chosen_target(args), args))


async def _show(engine: Engine, target: int | str, args: Namespace) -> int:
    async with engine:
        instance = await engine.get(target, tenant=args.tenant)
        below = _below(instance, await engine.insights.tree(instance.id))
        now = datetime.now(UTC)
        extra = {"waits for": await _waits_for(engine, instance, now), "runs on": await _runs_on(engine, instance, now)}
    if args.json:
        print(to_json({**record(instance), **below}))
    else:
        for line in _lines(instance, _facts(instance, extra, below, now), Paint.of(sys.stdout)):
            print(line)
    return OK


def _below(instance: Instance, family: Sequence[tuple[Instance, int]]) -> dict[str, Counter[str]]:
    """How many of its children, and of its items that continue as instances, are at which step."""
    mine = [member for member, _ in family if member.parent_id == instance.id]
    return {
        "children": Counter(str(member.status) for member in mine if member.item is None),
        "items": Counter(str(member.status) for member in mine if member.item is not None),
    }


async def _waits_for(engine: Engine, instance: Instance, now: datetime) -> str | None:
    """Why nothing happens, also when the row cannot say it: no worker has a free slot, or no worker serves the
    queue.
    """
    if instance.waiting_for is not None or instance.status is not Status.RUNNABLE:
        return waits(instance, now)
    serving = [w for w in await engine.insights.workers() if w.alive and instance.queue in w.queues]
    if serving:
        # One of them may be dead while its lease has not yet ended.
        beats = ", ".join(f"{worker.id} (last heard of {brief(now - worker.beat_at)} ago)" for worker in serving)
        return f"a free slot on queue {instance.queue!r}, served by worker {beats}"
    return f"a worker: none serves queue {instance.queue!r}; run: stepwell worker APP --queue {instance.queue}=20"


async def _runs_on(engine: Engine, instance: Instance, now: datetime) -> str | None:
    """The worker that has claimed it, and its last beat: the worker may be dead while its lease has not yet ended."""
    if instance.worker_id is None:
        return None
    for worker in await engine.insights.workers():
        if worker.id == instance.worker_id:
            beats = f"last heard of {brief(now - worker.beat_at)} ago"
            over = "" if worker.alive else "; its lease has ended, another worker will claim this instance soon"
            return f"worker {worker.id}, process {worker.pid} on {worker.host}, {beats}{over}"
    return f"worker {instance.worker_id}, which has ended; another worker will claim this instance soon"


def _lines(instance: Instance, facts: dict[str, str], paint: Paint) -> Iterator[str]:
    name = paint(f"{printable(instance.machine)} #{instance.id}", "bold")
    yield f"{name}  {paint.status(instance.status)}"
    width = max(map(len, facts))
    for label, value in facts.items():
        yield f"{INDENT}{paint(label.ljust(width), 'dim')}  {printable(value)}"
    yield from _block("state", pretty(instance.state), paint)
    if instance.status is Status.DONE:
        yield from _block("result", pretty(instance.result), paint)
    if instance.error is not None:
        label = "error" if instance.status.is_terminal else "error of the last attempt"
        yield from _block(label, _error_text(instance.error), paint, "red")


def _facts(
    instance: Instance, extra: Mapping[str, str | None], below: Mapping[str, Counter[str]], now: datetime
) -> dict[str, str]:
    """Label and value of each fact that is not empty."""
    crashes = f", {instance.crashes} crashes of its worker" if instance.crashes else ""
    facts = {
        "step": f"{instance.step}, attempt {instance.attempt}{crashes}",
        **{label: value or "" for label, value in extra.items()},
        "version": str(instance.version),
        "queue": f"{instance.queue}, priority {instance.priority}",
        "key": instance.key or "",
        "tenant": instance.tenant,
        "concurrency key": instance.concurrency_key or "",
        "parent": f"#{instance.parent_id}" if instance.parent_id is not None else "",
        "item": "" if instance.item is None else f"{instance.item} of its parent",
        **{label: ", ".join(f"{number} {status}" for status, number in sorted(counted.items()))
           for label, counted in below.items()},
        "deadline": _moment(instance.deadline, now),
        "created": _moment(instance.created_at, now),
        "updated": _moment(instance.updated_at, now),
        "finished": _moment(instance.finished_at, now),
    }
    return {label: value for label, value in facts.items() if value}


def _moment(at: datetime | None, now: datetime) -> str:
    if at is None:
        return ""
    distance = f"in {brief(at - now)}" if at > now else f"{brief(now - at)} ago"
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC, {distance}"


def _error_text(error: Failure) -> str:
    return printable(error.traceback or f"{error.type}: {error.message}").rstrip()


def _block(label: str, text: str, paint: Paint, *styles: str) -> Iterator[str]:
    yield f"{INDENT}{paint(label, 'dim')}"
    for line in text.splitlines():
        yield f"{INDENT * 2}{paint(line, *styles)}"
