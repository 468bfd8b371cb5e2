"""`stepwell signal`: put a signal into an instance's inbox."""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser, Namespace
from typing import Any

from stepwell._cli.app import add_engine_flags, chosen_engine
from stepwell._cli.exit_codes import OK, UsageError
from stepwell._cli.output import printable, to_json
from stepwell._cli.targets import add_key_flags, read_json
from stepwell.engine import Engine

EXAMPLES = """\
examples:
  stepwell signal 42 approved
  stepwell signal --key order:42 payment_confirmed '{"amount": 100}' --dedup-key evt-7

Exit code 1 if there is no such instance, or if it has ended. A signal that is not awaited yet is kept. The same
--dedup-key has one effect per instance, however often it is sent."""

USAGE = "stepwell signal (ID | --key KEY) NAME [PAYLOAD_JSON] [--dedup-key KEY] [--tenant TENANT] [--json]"


def configure(parser: ArgumentParser) -> None:
    parser.usage = USAGE
    parser.add_argument(
        "words", metavar="ID NAME PAYLOAD_JSON", nargs="*",
        help="the instance's id, unless --key is given; the signal's name; its payload, as JSON (- reads stdin)",
    )  # fmt: skip
    add_key_flags(parser)
    parser.add_argument("--dedup-key", metavar="KEY", help="the event's identity: signals that share it count once")
    add_engine_flags(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.epilog = EXAMPLES


def run(args: Namespace) -> int:
    target, name, payload = _parts(args.words, args.key)
    return asyncio.run(_signal(chosen_engine(args), target, name, payload, args))


async def _signal(engine: Engine, target: int | str, name: str, payload: Any, args: Namespace) -> int:
    async with engine:
        await engine.signal(target, name, payload, dedup_key=args.dedup_key, tenant=args.tenant)
    if args.json:
        which = {"id": target} if isinstance(target, int) else {"key": target}
        print(to_json({**which, "name": name, "payload": payload, "dedup_key": args.dedup_key}))
    else:
        print(printable(f"signalled {f'#{target}' if isinstance(target, int) else target}: {name}"))
    return OK


def _parts(words: list[str], key: str | None) -> tuple[int | str, str, Any]:
    """Target, name and payload. Where the name stands depends on `--key`, so argparse cannot tell them apart."""
    wanted = ["NAME"] if key is not None else ["ID (or --key KEY)", "NAME"]
    if len(words) < len(wanted):
        raise UsageError(f"{' and '.join(wanted[len(words):])} required; usage: {USAGE}")
    if len(words) > len(wanted) + 1:
        raise UsageError(f"too many words: {' '.join(words[len(wanted) + 1 :])!r}; usage: {USAGE}")
    target = _id(words[0]) if key is None else key
    name, *payload = words[len(wanted) - 1 :]
    return target, name, read_json(payload[0] if payload else None, "PAYLOAD_JSON")


def _id(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        raise UsageError(f"{word!r} is no id; for a key, use --key {word}") from None
