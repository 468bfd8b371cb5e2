"""`stepwell complete`: complete an interaction with a reply."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace
from typing import Any

import msgspec

from stepwell import Completion
from stepwell._cli.app import add_engine_flags, chosen_engine
from stepwell._cli.exit_codes import OK, UsageError
from stepwell._cli.output import printable, to_json
from stepwell._cli.targets import read_json
from stepwell.engine import Engine

EXAMPLES = """\
examples:
  stepwell complete 7d0f0b1e-6f0c-4c39-9d4b-0d3a4a5f1c11 --reply '{"approved": true}' --actor ana
  stepwell complete --correlation 0b9c6a52-93a5-5d0c-8a3e-2f1d4c6b7a80 --reply - < reply.json
  stepwell complete --token sw1.2026-11.… --reply true

The same completion again is a success. Exit code 1 if it is refused: no such interaction, completed otherwise
before, closed, too late, an invalid token; 2 if the reply is not of the type that was asked for. A refused completion
changes nothing."""


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", nargs="?", help="the interaction's id, as `stepwell interactions` shows it")
    parser.add_argument("--correlation", metavar="ID", help="its correlation id, instead of the id")
    parser.add_argument("--token", help="its signed token, if it requires one; needs no id beside it")
    parser.add_argument("--reply", metavar="JSON", required=True, help="the reply (- reads stdin)")
    parser.add_argument("--actor", metavar="ACTOR", help="the person or system that replies; kept with the interaction")
    parser.add_argument("--tenant", help="the interaction's tenant")
    add_engine_flags(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = EXAMPLES


def run(args: Namespace) -> int:
    if args.id is None and args.correlation is None and args.token is None:
        raise UsageError("an ID, --correlation ID or --token TOKEN is required")
    return asyncio.run(_complete(chosen_engine(args), read_json(args.reply, "--reply"), args))


async def _complete(engine: Engine, reply: Any, args: Namespace) -> int:
    async with engine:
        completion = await engine.complete(
            interaction=args.id, correlation=args.correlation, token=args.token, reply=reply, actor=args.actor,
            tenant=args.tenant,
        )  # fmt: skip
    print(to_json(msgspec.structs.asdict(completion)) if args.json else _summary(completion))
    return OK


def _summary(completion: Completion) -> str:
    asked_by = f"{completion.machine}.{completion.step} #{completion.instance_id}"
    before = " (a duplicate)" if completion.is_duplicate else ""
    return printable(f"completed {completion.interaction_id}{before}: {asked_by}")
