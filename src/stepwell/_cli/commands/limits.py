"""`stepwell limits`: list the limits, change one at run time, or reset it to its declaration."""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from datetime import timedelta

from stepwell._cli.app import add_engine_flags, chosen_engine
from stepwell._cli.exit_codes import OK, UsageError
from stepwell._cli.output import Paint, Table, to_json
from stepwell._store.limits import LimitRow
from stepwell.engine import Engine

EXAMPLES = """\
examples:
  stepwell limits
  stepwell limits set stripe --n 5 --by mia
  stepwell limits set mail --n 100 --per 60 --burst 20
  stepwell limits reset stripe

A change applies at once in every worker, until a reset or until the declaration in the code changes. A lower limit
drains: running steps continue. --json prints JSON lines: one object per limit and line."""

COLUMNS = ("limit", "kind", "n", "per", "burst", "version", "by", "executing", "waiting")


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("act", metavar="ACT", nargs="?", choices=["set", "reset"], help="set or reset; else list")
    parser.add_argument("name", metavar="NAME", nargs="?", help="the limit to set or reset")
    add_engine_flags(parser)
    parser.add_argument("--n", type=int, help="slots of a concurrency limit, or tokens per --per of a rate limit")
    parser.add_argument("--per", metavar="SECONDS", type=float, help="the time in which a rate limit grants --n tokens")
    parser.add_argument("--burst", type=int, help="the most tokens that a rate limit can accumulate")
    parser.add_argument("--kind", choices=["concurrency", "rate"], help="needed if two limits have this name")
    parser.add_argument("--by", help="the operator; kept with the limit")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    parser.epilog = EXAMPLES


def run(args: Namespace) -> int:
    if args.act is not None and args.name is None:
        raise UsageError(f"name the limit to {args.act}: stepwell limits {args.act} NAME")
    if args.act != "set" and (args.n, args.per, args.burst) != (None, None, None):
        raise UsageError("--n, --per and --burst are for: stepwell limits set NAME")
    return asyncio.run(_act(chosen_engine(args), args))


async def _act(engine: Engine, args: Namespace) -> int:
    async with engine:
        match args.act:
            case "set":
                changes = {"n": args.n, "per": args.per, "burst": args.burst}
                rows = [await engine.limits.set(args.name, kind=args.kind, by=args.by, **changes)]
            case "reset":
                rows = [await engine.limits.reset(args.name, kind=args.kind)]
            case _:
                rows = await engine.limits.list()
    if not rows:
        print("no limits; declare them in Engine(limits=[…]), and migrate or start a worker", file=sys.stderr)
    elif args.json:
        for row in rows:
            print(to_json({**asdict(row), "per": _seconds(row.per), "declared_per": _seconds(row.declared_per)}))
    else:
        for line in Table(*COLUMNS, paint=Paint.of(sys.stdout)).lines(_cells(row) for row in rows):
            print(line)
    return OK


def _cells(row: LimitRow) -> tuple[str, ...]:
    by = "declared" if not row.is_changed else f"{row.changed_by or 'operator'} (declared: {_declared(row)})"
    return (
        row.name, row.kind, str(row.n), "" if row.per is None else f"{row.per.total_seconds():g}s",
        "" if row.burst is None else str(row.burst), str(row.version), by,
        "" if row.executing is None else str(row.executing), str(row.waiting),
    )  # fmt: skip


def _declared(row: LimitRow) -> str:
    if row.declared_per is None:
        return str(row.declared_n)
    return f"{row.declared_n} per {row.declared_per.total_seconds():g}s, burst {row.declared_burst}"


def _seconds(per: timedelta | None) -> float | None:
    return None if per is None else per.total_seconds()
