"""Which instance a command is about, and words and JSON from the command line."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from stepwell._cli.exits import UsageError


def add_target(parser: ArgumentParser) -> None:
    """ID, or --key and whose key it is."""
    parser.add_argument("id", metavar="ID", type=int, nargs="?", help="the instance's id")
    add_key_flags(parser)


def add_key_flags(parser: ArgumentParser) -> None:
    parser.add_argument("--key", help="its key, instead of its id")
    parser.add_argument("--tenant", help="whose key it is")


def add_operator_flags(parser: ArgumentParser) -> None:
    """What is noted about an operator's act."""
    parser.add_argument("--reason", help="why, in words; kept with the instance")
    parser.add_argument("--by", metavar="WHO", help="who does it; kept with the instance")


def chosen_target(args: Namespace) -> int | str:
    """The id, or the key: one of them, not both."""
    if args.id is not None and args.key is not None:
        raise UsageError(f"both the id {args.id} and --key {args.key} are given; give one of them")
    if args.id is None and args.key is None:
        raise UsageError("an ID, or --key KEY, is required")
    return int(args.id) if args.key is None else str(args.key)


def read_json(text: str | None, name: str) -> Any:
    """What a JSON argument says; - reads stdin, and nothing is None."""
    if text is None:
        return None
    where = "stdin" if text == "-" else name
    try:
        return json.loads(sys.stdin.read() if text == "-" else text)
    except RecursionError:
        raise UsageError(f"{where} is nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}") from error
