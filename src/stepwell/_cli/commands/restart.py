"""`stepwell restart`: continue an instance at a step of your choice."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace
from typing import Any

from stepwell._cli.app import add_app, load_app
from stepwell._cli.summaries import report_act
from stepwell._cli.targets import add_operator_flags, add_target, chosen_target, read_json
from stepwell.engine import Engine

EXAMPLES = """\
examples:
  stepwell restart shop.app:engine 42 --step ship --reason "lost parcel" --by mia
  stepwell restart shop.app:engine --key order:42 --step pay --state '{"order": 42, "tries": 0}'

Whatever its status, the instance continues at that step, even if it was done; a running step is stopped. The app is
needed because it knows the machine's steps and the type of its state. Exit code 1 if another instance has its key
now."""


def configure(parser: ArgumentParser) -> None:
    add_app(parser)
    add_target(parser)
    parser.add_argument("--step", required=True, help="the step at which it continues")
    parser.add_argument(
        "--state", metavar="STATE_JSON", help="the whole new state, a JSON object; - reads stdin (default: unchanged)"
    )
    add_operator_flags(parser)
    parser.add_argument("--json", action="store_true", help="print the instance as one JSON object")
    parser.epilog = EXAMPLES


def run(args: Namespace) -> int:
    target = chosen_target(args)
    return asyncio.run(_restart(load_app(args.app), target, read_json(args.state, "STATE_JSON"), args))


async def _restart(engine: Engine, target: int | str, state: Any, args: Namespace) -> int:
    async with engine:
        found = await engine.get(target, tenant=args.tenant)
        await engine.restart(found.id, step=args.step, state=state, reason=args.reason, by=args.by)
        instance = await engine.get(found.id)
    return report_act(instance, refusal=None, as_json=args.json)
