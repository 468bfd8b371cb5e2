"""`stepwell queues`: list the queues and what waits in each; pause and resume them."""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from stepwell._cli.app import add_engine_flags, chosen_engine
from stepwell._cli.exit_codes import NOT_SO, OK, UsageError
from stepwell._cli.output import Paint, Table, printable, to_json
from stepwell._client.admin.queues import MOST_COUNTED, Queue
from stepwell.engine import Engine

COLUMNS = ("queue", "fair by", "runnable", "executing", "held", "paused")
EXAMPLES = """\
examples:
  stepwell queues
  stepwell queues pause mail --reason "the provider is down" --by mia
  stepwell queues resume mail

Nothing is claimed from a paused queue; running steps continue to their commit. Counting ends at 10,000.
Exit code 1 if there was nothing to do: the queue was already paused, or already running."""


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("act", metavar="pause|resume", choices=("pause", "resume"), nargs="?", help="by default: list")
    parser.add_argument("name", metavar="NAME", nargs="?", help="the queue to pause or to resume")
    parser.add_argument("--reason", help="why it is paused, in words; kept with the queue")
    parser.add_argument("--by", metavar="OPERATOR", help="the operator; kept with the queue")
    add_engine_flags(parser)
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    parser.epilog = EXAMPLES


def run(args: Namespace) -> int:
    if args.act is not None and args.name is None:
        raise UsageError(f"{args.act}: the NAME of a queue is required")
    if args.act != "pause" and (args.reason is not None or args.by is not None):
        raise UsageError("--reason and --by belong to a pause")
    return asyncio.run(_run(chosen_engine(args), args))


async def _run(engine: Engine, args: Namespace) -> int:
    async with engine:
        has_changed = await _act(engine, args)
        found = [queue for queue in await engine.queues.list() if args.name in (None, queue.name)]
    if args.json:
        for queue in found:
            print(to_json(asdict(queue)))
    elif args.act is None:
        _print_table(found)
    elif has_changed:
        print(f"queue {args.name!r} is {args.act}d")
    if has_changed:
        return OK
    state = "paused" if args.act == "pause" else "running"
    print(f"stepwell: nothing to {args.act}: queue {args.name!r} was {state} already", file=sys.stderr)
    return NOT_SO


async def _act(engine: Engine, args: Namespace) -> bool:
    match args.act:
        case "pause":
            return await engine.queues.pause(args.name, reason=args.reason, by=args.by)
        case "resume":
            return await engine.queues.resume(args.name)
        case _:
            return True


def _print_table(found: list[Queue]) -> None:
    table = Table(*COLUMNS, paint=Paint.of(sys.stdout))
    rows = [(queue.name, queue.fair_by or "", *_counts(queue), _pause(queue)) for queue in found]
    styles = [["", "", "", "", "", "yellow"] for _ in found]
    for line in table.lines(rows, styles):
        print(line)


def _counts(queue: Queue) -> tuple[str, str, str]:
    runnable = f"{queue.runnable}{'+' if queue.runnable >= MOST_COUNTED else ''}"
    return runnable, str(queue.executing), "many" if queue.held is None else str(queue.held)


def _pause(queue: Queue) -> str:
    """`since 2026-11-15 10:00 by mia: the provider is down`."""
    if queue.paused_at is None:
        return ""
    by = f" by {queue.paused_by}" if queue.paused_by else ""
    return printable(f"since {queue.paused_at:%Y-%m-%d %H:%M}{by}{f': {queue.reason}' if queue.reason else ''}")
