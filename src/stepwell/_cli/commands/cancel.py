"""`stepwell cancel`: cancel an instance and its descendants."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace

from stepwell._cli.app import add_engine_flags, chosen_engine
from stepwell._cli.summaries import named, report_act
from stepwell._cli.targets import add_operator_flags, add_target, chosen_target
from stepwell.engine import Engine

EXAMPLES = """\
examples:
  stepwell cancel 42 --reason "ordered twice" --by mia
  stepwell cancel --key order:42 --no-cascade

A running step is stopped, and its outcome is dropped. Exit code 1 if the instance had ended already."""


def configure(parser: ArgumentParser) -> None:
    add_target(parser)
    add_operator_flags(parser)
    parser.add_argument("--no-cascade", action="store_true", help="do not cancel its descendants")
    add_engine_flags(parser)
    parser.add_argument("--json", action="store_true", help="print the instance as one JSON object")
    parser.epilog = EXAMPLES


def run(args: Namespace) -> int:
    return asyncio.run(_cancel(chosen_engine(args), chosen_target(args), args))


async def _cancel(engine: Engine, target: int | str, args: Namespace) -> int:
    async with engine:
        found = await engine.get(target, tenant=args.tenant)
        is_cancelled = await engine.cancel(
            found.id, reason=args.reason, cascade=not args.no_cascade, by=args.by, tenant=args.tenant
        )
        instance = await engine.get(found.id)
    ended = f"nothing to cancel: {named(instance)} had ended already, it is {instance.status}"
    return report_act(instance, refusal=None if is_cancelled else ended, as_json=args.json)
