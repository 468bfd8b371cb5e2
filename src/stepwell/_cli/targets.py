"""The instance a command is about, and JSON arguments."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from stepwell._cli.exit_codes import UsageError


def add_target(parser: ArgumentParser) -> None:
    """Add ID, --key and --tenant."""
    parser.add_argument("id", metavar="ID", type=int, nargs="?", help="the instance's id")
    add_key_flags(parser)


def add_key_flags(parser: ArgumentParser) -> None:
    parser.add_argument("--key", help="its key, instead of its id")
    parser.add_argument("--tenant", help="the key's tenant; with an ID, the tenant that the instance must have")


def add_operator_flags(parser: ArgumentParser) -> None:
    """Add what is noted about an operator's act."""
    parser.add_argument("--reason", help="why, in words; kept with the instance")
    parser.add_argument("--by", metavar="OPERATOR", help="the operator; kept with the instance")


def chosen_target(args: Namespace) -> int | str:
    """The id or the key, of which exactly one has to be given."""
    if args.id is not None and args.key is not None:
        raise UsageError(f"both the id {args.id} and --key {args.key} are given; give one of them")
    if args.id is None and args.key is None:
        raise UsageError("an ID, or --key KEY, is required")
    return int(args.id) if args.key is None else str(args.key)


def read_json(text: str | None, name: str) -> Any:
    """The value of a JSON argument; - reads stdin, and no argument is None."""
    if text is None:
        return None
    where = "stdin" if text == "-" else name
    try:
        return json.loads(sys.stdin.read() if text == "-" else text)
    except RecursionError:
        raise UsageError(f"{where} is nested too deeply") from None
    except ValueError as error:
        raise UsageError(f"{where} is not JSON: {error}") from error
