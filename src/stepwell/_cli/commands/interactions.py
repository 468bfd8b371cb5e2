"""`stepwell interactions`: list the interactions that wait for a reply, the most urgent first."""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

import msgspec

from stepwell import Interaction
from stepwell._cli.app import add_engine_flags, chosen_engine
from stepwell._cli.exit_codes import OK
from stepwell._cli.output import Paint, Table, brief, to_json
from stepwell._client.admin.interactions import LARGEST_PAGE
from stepwell.engine import Engine

COLUMNS = ("id", "asked by", "asked", "deadline", "assignee", "group", "request")
EXAMPLES = """\
examples:
  stepwell interactions --group finance
  stepwell interactions --assignee ana --overdue
  stepwell interactions --all --json | jq -r .id

Sorted by deadline, then by age; of all transports, whether sent or not. --json prints JSON lines: one object per
interaction and line. Complete one with: stepwell complete ID --reply JSON"""


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("--assignee", metavar="PERSON", help="asked of this person")
    parser.add_argument("--group", help="asked of this group")
    parser.add_argument("--machine", help="asked by this machine")
    parser.add_argument("--step", help="asked at this step")
    parser.add_argument("--transport", help="asked over this transport")
    parser.add_argument("--overdue", action="store_true", default=None, help="only those with a deadline in the past")
    parser.add_argument("--tenant", help="of this tenant")
    many = parser.add_mutually_exclusive_group()
    many.add_argument("--limit", metavar="N", type=int, default=50, help=f"up to {LARGEST_PAGE} (default: 50)")
    many.add_argument("--all", action="store_true", help="all of them, page by page")
    parser.add_argument("--after", metavar="CURSOR", help="continue after the cursor that the previous page printed")
    add_engine_flags(parser)
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    parser.epilog = EXAMPLES


def run(args: Namespace) -> int:
    return asyncio.run(_list(chosen_engine(args), args))


async def _list(engine: Engine, args: Namespace) -> int:
    table = Table(*COLUMNS, paint=Paint.of(sys.stdout))
    is_empty = True
    async with engine:
        async for interactions, cursor in _pages(engine, args):
            is_empty = is_empty and not interactions
            if args.json:
                for interaction in interactions:
                    print(to_json(msgspec.structs.asdict(interaction)))
            elif interactions:
                _print_rows(table, interactions)
            if cursor is not None and not args.all:
                print(f"there are more: --after {cursor}, or --all", file=sys.stderr)
    if is_empty and not args.json:
        print("no interaction waits for a reply", file=sys.stderr)
    return OK


async def _pages(engine: Engine, args: Namespace) -> AsyncIterator[tuple[Sequence[Interaction], str | None]]:
    after = args.after
    while True:
        page = await engine.interactions.pending(
            tenant=args.tenant, assignee=args.assignee, group=args.group, machine=args.machine, step=args.step,
            transport=args.transport, overdue=args.overdue, limit=LARGEST_PAGE if args.all else args.limit,
            after=after,
        )  # fmt: skip
        yield page.items, page.cursor
        after = page.cursor
        if after is None or not args.all:
            return


def _print_rows(table: Table, interactions: Sequence[Interaction]) -> None:
    now = datetime.now(UTC)
    rows = [_row(interaction, now) for interaction in interactions]
    styles = [["", "", "dim", "red" if interaction.is_overdue else "", "", "", ""] for interaction in interactions]
    for line in table.lines(rows, styles):
        print(line)


def _row(interaction: Interaction, now: datetime) -> tuple[str, ...]:
    return (
        interaction.id, f"{interaction.machine}.{interaction.step} #{interaction.instance_id}",
        f"{brief(now - interaction.created_at)} ago", _deadline(interaction, now), interaction.assignee or "",
        interaction.group or "", to_json(interaction.request),
    )  # fmt: skip


def _deadline(interaction: Interaction, now: datetime) -> str:
    """`in 5m`, `overdue 2h`, or nothing."""
    if interaction.deadline is None:
        return ""
    if interaction.is_overdue:
        return f"overdue {brief(now - interaction.deadline)}"
    return f"in {brief(interaction.deadline - now)}"
