"""`stepwell retry`: run a failed or cancelled instance again at its step."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace

from stepwell import Instance, Status
from stepwell._cli.app import add_engine_flags, chosen_engine
from stepwell._cli.summaries import named, report_act, standing
from stepwell._cli.targets import add_operator_flags, add_target, chosen_target
from stepwell.engine import Engine

EXAMPLES = """\
examples:
  stepwell retry 42 --reason "the provider is back" --by mia
  stepwell ls --status failed --machine Order --all --json | jq .id | xargs -n 1 stepwell retry

An instance that waits for its due time, or for code that can run it, is tried now. Exit code 1 if there is nothing to
retry, or if another instance has its key now."""


def configure(parser: ArgumentParser) -> None:
    add_target(parser)
    add_operator_flags(parser)
    add_engine_flags(parser)
    parser.add_argument("--json", action="store_true", help="print the instance as one JSON object")
    parser.epilog = EXAMPLES


def run(args: Namespace) -> int:
    return asyncio.run(_retry(chosen_engine(args), chosen_target(args), args))


async def _retry(engine: Engine, target: int | str, args: Namespace) -> int:
    async with engine:
        found = await engine.get(target, tenant=args.tenant)
        # The engine reports a done instance as an error of the caller; a script needs exit code 1.
        is_retried = found.status is not Status.DONE and await engine.retry(found.id, reason=args.reason, by=args.by)
        instance = await engine.get(found.id)
    return report_act(instance, refusal=None if is_retried else _refusal(instance), as_json=args.json)


def _refusal(instance: Instance) -> str:
    if instance.status is Status.DONE:
        hint = f"run it again from a step with: stepwell restart APP {instance.id} --step STEP"
        return f"nothing to retry: {named(instance)} is done; {hint}"
    return f"nothing to retry: {standing(instance)}"
