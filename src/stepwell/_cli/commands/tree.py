"""`stepwell tree`: an instance's family, from its topmost parent down."""

from __future__ import annotations

import asyncio
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from stepwell import Instance, Status
from stepwell._cli.app import add_engine_flags, chosen_engine
from stepwell._cli.exit_codes import OK
from stepwell._cli.output import Paint, printable, record, to_json, waits
from stepwell._cli.targets import add_target, chosen_target
from stepwell.engine import Engine

EXAMPLES = """\
examples:
  stepwell tree 42
  stepwell tree --key order:42 --json | jq 'select(.status == "failed") | .id'

--json prints JSON lines: one object per instance and line, each with its depth."""

LARGEST = 10_000  # the engine reads no more
MARKS = {Status.DONE: "✓", Status.FAILED: "✗", Status.CANCELLED: "⊘", Status.EXECUTING: "▶", Status.RUNNABLE: "○"}
PARKED = "…"


def configure(parser: ArgumentParser) -> None:
    add_target(parser)
    add_engine_flags(parser)
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    parser.epilog = EXAMPLES


def run(args: Namespace) -> int:
    return asyncio.run(_tree(chosen_engine(args), chosen_target(args), args))


async def _tree(engine: Engine, target: int | str, args: Namespace) -> int:
    async with engine:
        asked = (await engine.get(target, tenant=args.tenant)).id
        family = await engine.insights.tree(asked)
    if args.json:
        for instance, depth in family:
            print(to_json({"depth": depth, **record(instance)}))
    else:
        for line in _lines(family, asked, Paint.of(sys.stdout)):
            print(line)
    if len(family) == LARGEST:
        print(f"stepwell: only the first {LARGEST:,} instances of this family are shown", file=sys.stderr)
    return OK


def _lines(family: Sequence[tuple[Instance, int]], asked: int, paint: Paint) -> Iterator[str]:
    now = datetime.now(UTC)
    for (instance, _), branch in zip(family, _branches([depth for _, depth in family]), strict=True):
        mark = paint.status(instance.status, MARKS.get(instance.status, PARKED))
        name = printable(f"{instance.machine} #{instance.id}")
        here = instance.id == asked and len(family) > 1
        line = f"{paint(branch, 'dim')}{mark} {paint(name, 'bold')}  {', '.join(_parts(instance, now))}"
        yield f"{line}  {paint('← here', 'cyan')}" if here else line


def _parts(instance: Instance, now: datetime) -> Iterator[str]:
    """The parts of one line: which item it is, where it stands, why nothing happens, how it ended, its key."""
    ended = instance.status.is_terminal
    if instance.item is not None:
        yield f"item {instance.item}"
    yield str(instance.status) if instance.status is Status.DONE else f"{instance.status} at {printable(instance.step)}"
    if not ended and (why := waits(instance, now)):
        yield f"waits for {printable(why)}"
    if ended and instance.error is not None:
        yield printable(f"{instance.error.type}: {instance.error.message}".splitlines()[0])
    if instance.key is not None:
        yield f"key {printable(instance.key)}"


def _branches(depths: Sequence[int]) -> list[str]:
    """The branch in front of each line, built from the last line up, as only the next line tells whether a sibling
    follows.
    """
    branches: list[str] = []
    open_depths: set[int] = set()
    for depth in reversed(depths):
        stem = "".join("│  " if level in open_depths else "   " for level in range(1, depth))
        branches.append("" if depth == 0 else f"{stem}{'├─ ' if depth in open_depths else '└─ '}")
        open_depths = {level for level in open_depths if level < depth} | {depth}
    return branches[::-1]
