"""`stepwell start`: start an instance, print its id, and wait for its end if asked to."""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import ArgumentParser, Namespace
from datetime import timedelta
from typing import Any

from stepwell import Instance, Status
from stepwell._cli.app import APP_HELP, load_app
from stepwell._cli.exits import NOT_SO, OK, UsageError
from stepwell._cli.output import record, to_json
from stepwell._cli.values import moment, seconds
from stepwell.engine import Engine

EXAMPLES = """\
examples:
  stepwell start shop.app:engine Order '{"item": "teapot"}' --queue express --wait 30
  jq .order mail.json | stepwell start shop.app:engine Order -

Prints the id. With --wait, then the result as JSON; exit code 1 if the instance failed, was cancelled or has not ended
in time. With --json, one object: {"id": 1}, or the whole instance with --wait."""

FOREVER = timedelta.max


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("app", metavar="APP", help=APP_HELP)
    parser.add_argument("machine", metavar="MACHINE", help="the name of a machine or a job of the app")
    parser.add_argument(
        "state", metavar="STATE_JSON", nargs="?",
        help="its first state, or the job's arguments, as a JSON object; - reads stdin",
    )  # fmt: skip
    parser.add_argument("--queue", help="instead of the machine's own")
    parser.add_argument("--priority", type=int, default=0, help="lower ones run first (default: 0)")
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--delay", metavar="SECONDS", type=seconds, help="begin so much later")
    when.add_argument("--at", metavar="ISO", type=moment, help="begin then: 2026-01-31T09:00:00Z")
    parser.add_argument("--step", help="begin there instead of at the initial step")
    parser.add_argument("--concurrency-key", metavar="KEY", help="one instance of that key runs at a time")
    parser.add_argument("--tenant", help="whose it is")
    parser.add_argument(
        "--wait", metavar="SECONDS", type=seconds, nargs="?", const=FOREVER,
        help="wait for its end, at most so long (without a number: as long as it takes)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = EXAMPLES


def run(args: Namespace) -> int:
    return asyncio.run(_start(load_app(args.app), _read_state(args.state), args))


async def _start(engine: Engine, state: Any, args: Namespace) -> int:
    async with engine:
        handle = await engine.start(
            args.machine, state, queue=args.queue, priority=args.priority, delay=args.delay, at=args.at,
            step=args.step, concurrency_key=args.concurrency_key, tenant=args.tenant,
        )  # fmt: skip
        if not args.json:
            print(handle.id, flush=True)
        elif args.wait is None:
            print(to_json({"id": handle.id}))
        if args.wait is None:
            return OK
        instance = await handle.wait(None if args.wait is FOREVER else args.wait)
    if args.json:
        print(to_json(record(instance)))
    elif instance.status is Status.DONE:
        print(to_json(instance.result))
    if instance.status is not Status.DONE:
        print(f"stepwell: {_ending(instance)}", file=sys.stderr)
        return NOT_SO
    return OK


def _read_state(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(sys.stdin.read() if text == "-" else text)
    except ValueError as error:
        source = "stdin" if text == "-" else "STATE_JSON"
        raise UsageError(f"{source} is not JSON: {error}") from error


def _ending(instance: Instance) -> str:
    """Why it is not done, in one line."""
    who = f"{instance.machine} #{instance.id}"
    error = instance.error
    match instance.status:
        case Status.FAILED:
            why = "" if error is None else f": {error.type}: {error.message}"
            return f"{who} failed at step {instance.step!r}{why}"
        case Status.CANCELLED:
            return f"{who} was cancelled" + ("" if error is None else f": {error.message}")
        case _:
            why = f", waiting for {instance.waiting_for}" if instance.waiting_for else ""
            return f"{who} is still {instance.status} at step {instance.step!r}{why}"
