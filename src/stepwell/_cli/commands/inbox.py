"""`stepwell inbox`: questions that wait for an answer, the most urgent first."""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime

import msgspec

from stepwell import Interaction
from stepwell._cli.app import add_engine_flags, chosen_engine
from stepwell._cli.exits import OK
from stepwell._cli.output import Paint, Table, brief, to_json
from stepwell.engine import Engine
from stepwell.interactions import LARGEST_PAGE

COLUMNS = ("id", "asked by", "asked", "deadline", "assignee", "group", "request")
EXAMPLES = """\
examples:
  stepwell inbox --group finance
  stepwell inbox --assignee ana --overdue
  stepwell inbox --all --json | jq -r .id

By deadline, then by age; those of all transports, whether sent or not. --json prints JSON lines: one object per
question and line. Answer one with: stepwell complete ID --reply JSON"""


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("--assignee", metavar="WHO", help="asked of this person")
    parser.add_argument("--group", help="asked of this group")
    parser.add_argument("--machine", help="asked by this machine")
    parser.add_argument("--step", help="asked at this step")
    parser.add_argument("--transport", help="asked over this transport")
    parser.add_argument("--overdue", action="store_true", default=None, help="only those whose deadline has passed")
    parser.add_argument("--tenant", help="of this tenant")
    many = parser.add_mutually_exclusive_group()
    many.add_argument("--limit", metavar="N", type=int, default=50, help=f"at most so many, up to {LARGEST_PAGE} (50)")
    many.add_argument("--all", action="store_true", help="all of them, page by page")
    parser.add_argument("--after", metavar="CURSOR", help="go on after this cursor, which the page before has printed")
    add_engine_flags(parser)
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    parser.epilog = EXAMPLES


def run(args: Namespace) -> int:
    return asyncio.run(_list(chosen_engine(args), args))


async def _list(engine: Engine, args: Namespace) -> int:
    table = Table(*COLUMNS, paint=Paint.of(sys.stdout))
    is_empty = True
    async with engine:
        async for questions, cursor in _pages(engine, args):
            is_empty = is_empty and not questions
            if args.json:
                for question in questions:
                    print(to_json(msgspec.structs.asdict(question)))
            elif questions:
                _print_rows(table, questions)
            if cursor is not None and not args.all:
                print(f"there are more: --after {cursor}, or --all", file=sys.stderr)
    if is_empty and not args.json:
        print("nothing waits for an answer", file=sys.stderr)
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


def _print_rows(table: Table, questions: Sequence[Interaction]) -> None:
    now = datetime.now(UTC)
    rows = [_row(question, now) for question in questions]
    styles = [["", "", "dim", "red" if question.is_overdue else "", "", "", ""] for question in questions]
    for line in table.lines(rows, styles):
        print(line)


def _row(question: Interaction, now: datetime) -> tuple[str, ...]:
    return (
        question.id, f"{question.machine}.{question.step} #{question.instance_id}",
        f"{brief(now - question.created_at)} ago", _deadline(question, now), question.assignee or "",
        question.group or "", to_json(question.request),
    )  # fmt: skip


def _deadline(question: Interaction, now: datetime) -> str:
    """`in 5m`, `overdue 2h`, or nothing."""
    if question.deadline is None:
        return ""
    if question.is_overdue:
        return f"overdue {brief(now - question.deadline)}"
    return f"in {brief(question.deadline - now)}"
