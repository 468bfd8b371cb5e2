"""`stepwell wait`: wait until an instance has ended, or is parked."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace

from stepwell._cli.app import add_engine_flags, chosen_engine
from stepwell._cli.flag_values import seconds
from stepwell._cli.summaries import report_wait
from stepwell._cli.targets import add_target, chosen_target
from stepwell.engine import Engine

EXAMPLES = """\
examples:
  stepwell wait 42 --timeout 30
  stepwell wait --key order:42 --until settled --json | jq .waiting_for

Prints the result as JSON, or the status of a parked instance; with --json, the whole instance. Exit code 1 if it
failed, was cancelled, or did not get there in time."""


def configure(parser: ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--timeout", metavar="SECONDS", type=seconds, help="how long at most (default: without end)")
    parser.add_argument(
        "--until", choices=["terminal", "settled"], default="terminal",
        help="terminal: it has ended (the default); settled: it has ended or is parked",
    )  # fmt: skip
    add_engine_flags(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = EXAMPLES


def run(args: Namespace) -> int:
    return asyncio.run(_wait(chosen_engine(args), chosen_target(args), args))


async def _wait(engine: Engine, target: int | str, args: Namespace) -> int:
    async with engine:
        instance = await engine.wait(target, timeout=args.timeout, until=args.until, tenant=args.tenant)
    status = instance.status
    reached = status.is_terminal or (args.until == "settled" and status.is_settled)
    return report_wait(instance, reached=reached, as_json=args.json)
