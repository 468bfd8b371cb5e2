"""`stepwell ls`: list instances, newest first."""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator
from datetime import UTC, datetime

from stepwell import Instance, Status
from stepwell._cli.app import add_engine_flags, chosen_engine
from stepwell._cli.exit_codes import OK
from stepwell._cli.output import STATUS_COLOURS, Paint, Table, brief, record, to_json, waits, where
from stepwell._client.admin.insights import MOST_PER_PAGE, Page
from stepwell.engine import Engine

EXAMPLES = """\
examples:
  stepwell ls --status failed --machine Order
  stepwell ls --status runnable --status executing --all --json | jq -r .id

--json prints JSON lines: one object per instance and line."""

COLUMNS = ("id", "machine", "key", "step", "status", "attempt", "queue", "age", "waiting for")


def configure(parser: ArgumentParser) -> None:
    add_engine_flags(parser)
    parser.add_argument(
        "--status", action="append", choices=[*Status], metavar="STATUS", help=f"{', '.join(Status)}; may be repeated"
    )
    parser.add_argument("--machine", help="of this machine or job")
    parser.add_argument("--step", help="at this step")
    parser.add_argument("--queue", help="on this queue")
    parser.add_argument("--key", help="with this key")
    parser.add_argument("--tenant", help="of this tenant")
    many = parser.add_mutually_exclusive_group()
    many.add_argument("--limit", metavar="N", type=int, default=50, help=f"up to {MOST_PER_PAGE} (default: 50)")
    many.add_argument("--all", action="store_true", help="all of them, page by page")
    parser.add_argument("--after", metavar="ID", type=int, help="continue after this id, the last of the previous page")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    parser.epilog = EXAMPLES


def run(args: Namespace) -> int:
    return asyncio.run(_list(chosen_engine(args), args))


async def _list(engine: Engine, args: Namespace) -> int:
    table = Table(*COLUMNS, paint=Paint.of(sys.stdout))
    is_empty = True
    async with engine:
        async for page in _pages(engine, args):
            is_empty = is_empty and not page.items
            if args.json:
                _print_lines(page)
            elif page.items:
                _print_rows(table, page)
            if page.next is not None and not args.all and not args.json:
                print(f"there are more: --after {page.next}, or --all", file=sys.stderr)
    if is_empty and not args.json:
        print("no such instances", file=sys.stderr)
    return OK


async def _pages(engine: Engine, args: Namespace) -> AsyncIterator[Page]:
    after = args.after
    while True:
        page = await engine.insights.list(
            status=args.status, machine=args.machine, step=args.step, queue=args.queue, key=args.key,
            tenant=args.tenant, limit=MOST_PER_PAGE if args.all else args.limit, after=after,
        )  # fmt: skip
        yield page
        after = page.next
        if after is None or not args.all:
            return


def _print_lines(page: Page) -> None:
    for instance in page.items:
        print(to_json(record(instance)))


def _print_rows(table: Table, page: Page) -> None:
    now = datetime.now(UTC)
    rows = [_row(instance, now) for instance in page.items]
    styles = [["", "", "", "", STATUS_COLOURS.get(i.status, ""), "", "", "dim", ""] for i in page.items]
    for line in table.lines(rows, styles):
        print(line)


def _row(instance: Instance, now: datetime) -> tuple[str, ...]:
    return (
        str(instance.id), instance.machine, instance.key or "", where(instance), instance.status, str(instance.attempt),
        instance.queue, brief(now - instance.created_at), waits(instance, now) or "",
    )  # fmt: skip
