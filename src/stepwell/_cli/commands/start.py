"""`stepwell start`: start an instance, print its id, and wait for its end if asked to."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace
from datetime import timedelta
from typing import Any

from stepwell._cli.app import add_app, load_app
from stepwell._cli.exit_codes import OK
from stepwell._cli.flag_values import moment, seconds
from stepwell._cli.output import to_json
from stepwell._cli.summaries import report_wait
from stepwell._cli.targets import read_json
from stepwell.engine import Engine

EXAMPLES = """\
examples:
  stepwell start shop.app:engine Order '{"item": "teapot"}' --queue express --wait 30
  jq .order mail.json | stepwell start shop.app:engine Order -
  stepwell start shop.app:engine Checkout '{"order": 42}' --key order:42 --if-exists return

Prints the id. With --wait, then the result as JSON; exit code 1 if the instance failed, was cancelled or has not ended
in time, or if the key is occupied. With --json, one object: {"id": 1, "key": null}, or with --wait the instance."""

FOREVER = timedelta.max


def configure(parser: ArgumentParser) -> None:
    add_app(parser)
    parser.add_argument("machine", metavar="MACHINE", help="the name of a machine or a job of the app")
    parser.add_argument(
        "state", metavar="STATE_JSON", nargs="?",
        help="its first state, or the job's arguments, as a JSON object; - reads stdin",
    )  # fmt: skip
    parser.add_argument("--queue", help="instead of the machine's own")
    parser.add_argument("--priority", type=int, default=0, help="lower ones run first (default: 0)")
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--delay", metavar="SECONDS", type=seconds, help="start after this delay")
    when.add_argument("--at", metavar="ISO", type=moment, help="start at this time: 2026-01-31T09:00:00Z")
    parser.add_argument("--step", help="start at this step instead of the initial one")
    parser.add_argument("--key", help="its business identity: unique, and its address for other commands")
    parser.add_argument(
        "--key-scope", choices=["live", "forever", "none"], default="live",
        help="unique among instances that have not ended (the default), forever, or neither unique nor an address",
    )  # fmt: skip
    parser.add_argument(
        "--if-exists", choices=["raise", "return"], default="raise",
        help="if the key is occupied: exit with 1 (the default), or continue with the instance that has it",
    )  # fmt: skip
    parser.add_argument("--concurrency-key", metavar="KEY", help="one instance of that key runs at a time")
    parser.add_argument("--tenant", help="its tenant")
    parser.add_argument(
        "--wait", metavar="SECONDS", type=seconds, nargs="?", const=FOREVER,
        help="wait for its end, SECONDS at most (without a number: without end)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = EXAMPLES


def run(args: Namespace) -> int:
    return asyncio.run(_start(load_app(args.app), read_json(args.state, "STATE_JSON"), args))


async def _start(engine: Engine, state: Any, args: Namespace) -> int:
    async with engine:
        handle = await engine.start(
            args.machine, state, key=args.key, key_scope=None if args.key_scope == "none" else args.key_scope,
            if_exists=args.if_exists, queue=args.queue, priority=args.priority, delay=args.delay, at=args.at,
            step=args.step, concurrency_key=args.concurrency_key, tenant=args.tenant,
        )  # fmt: skip
        if not args.json:
            print(handle.id, flush=True)
        elif args.wait is None:
            print(to_json({"id": handle.id, "key": handle.key}))
        if args.wait is None:
            return OK
        instance = await handle.wait(None if args.wait is FOREVER else args.wait)
    return report_wait(instance, reached=instance.status.is_terminal, as_json=args.json)
