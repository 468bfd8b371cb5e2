"""Pipelines over a file of rows, and the transport of one of them, which sends nothing and completes at once."""

from __future__ import annotations

import asyncio
import csv
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from stepwell import CompletionRefused
from stepwell.pipelines import Pipeline, await_, many_to_one, one_to_many, one_to_one
from stepwell.transports import Admit, Answer, Dispatch, Transport

WINDOW = 200


class Row(msgspec.Struct, frozen=True):
    """One row of the file."""

    number: int
    name: str
    cents: int


class Taxed(msgspec.Struct, frozen=True):
    """A row with its tax."""

    number: int
    cents: int


def write_file(path: Path, rows: int) -> int:
    """Write a file of rows; returns the sum of their results."""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows((number, f"customer {number:08}", number % 10_000) for number in range(rows))
    return sum(taxed(number % 10_000) for number in range(rows))


def taxed(cents: int) -> int:
    return cents * 119 // 100


@one_to_many
def read_rows(path: str) -> Iterator[Row]:
    with Path(path).open(newline="") as file:
        for number, name, cents in csv.reader(file):
            yield Row(int(number), name, int(cents))


@one_to_one
async def add_tax(row: Row) -> Taxed:
    return Taxed(row.number, taxed(row.cents))


@one_to_one
async def check(row: Taxed) -> Taxed:
    return row


@many_to_one
async def add_up(rows: AsyncIterator[Taxed]) -> int:
    total = 0
    async for row in rows:
        total += row.cents
    return total


@many_to_one
async def write(rows: AsyncIterator[Taxed]) -> int:
    total = 0
    with tempfile.TemporaryFile("w", newline="") as file:
        writer = csv.writer(file)
        async for row in rows:
            writer.writerow((row.number, row.cents))
            total += row.cents
    return total


class Null(Transport):
    """Sends nothing, and completes each interaction at once: the window moves as fast as the engine lets it."""

    name = "null"
    max_in_flight = WINDOW

    def __init__(self) -> None:
        self._asked: asyncio.Queue[Dispatch] = asyncio.Queue()

    async def send(self, dispatch: Dispatch, /) -> None:
        self._asked.put_nowait(dispatch)

    async def receive(self, admit: Admit, /) -> None:
        await asyncio.gather(*(self._answer(admit) for _ in range(WINDOW)))

    async def _answer(self, admit: Admit) -> None:
        while True:
            asked = await self._asked.get()
            reply = {"number": asked.request["number"], "cents": taxed(asked.request["cents"])}
            with suppress(CompletionRefused):  # it was sent twice, and is completed
                await admit(Answer(interaction=asked.interaction_id, reply=reply))


summed = Pipeline("summed", [read_rows, add_tax, add_up])
written = Pipeline("written", [read_rows, add_tax, write])
asked_each = Pipeline(
    "asked each", [read_rows, await_("Ask the tax", over="null", input=Row, output=Taxed, window=WINDOW), check, add_up]
)


def engine() -> dict[str, Any]:
    """What an engine needs to run them."""
    return {"machines": [summed.machine, written.machine, asked_each.machine], "transports": [Null()]}
