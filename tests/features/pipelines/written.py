"""A valid pipeline in YAML, its functions, and a helper that makes it invalid."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stepwell import InvalidPipeline
from stepwell.pipelines import load, one_to_one
from tests.features.pipelines.examples import Item, Priced

GOOD = """\
name: prices
version: 3
queue: slow
module: tests.features.pipelines.examples
input: Numbers
steps:
  - name: Count
    function: count
  - name: Ask prices
    kind: await
    cardinality: ONE_TO_ONE
    input: Item
    output: Priced
    timeout: PT5M
    idempotencyKeyFields: [number]
    await:
      correlation: {strategy: signedResumeToken}
      transport: {type: interaction-api}
      window: 7
      assignee: ana
      group: finance
  - name: Make cheaper
    cardinality: ONE_TO_ONE
    function: tests.features.pipelines.written:cheaper
    retries: 5
    backoff: PT2S
    onError: reject
  - name: Add up
    cardinality: REDUCTION
    function: total
"""

TRANSPORT = "{type: interaction-api}"
STRATEGY = "{strategy: signedResumeToken}"


def put(path: Path, text: str, *changes: tuple[str, str]) -> Path:
    """A file with this text, in which each change replaces something that is there once."""
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
        text = text.replace(old, new)
    path.write_text(text, "utf-8")
    return path


def prices(folder: Path, *changes: tuple[str, str]) -> Path:
    """The right one, changed."""
    return put(folder / "prices.yaml", GOOD, *changes)


def line_of(path: Path, text: str) -> int:
    """The number of the line in the file that has this text first."""
    return next(number for number, line in enumerate(path.read_text("utf-8").splitlines(), 1) if text in line)


async def cheaper(priced: Priced) -> Priced:
    return Priced(priced.number, priced.price - 1)


@one_to_one
async def declared(item: Item) -> Item:
    return item


async def untyped(item: Any) -> Any:
    return item


async def with_two(item: Item, other: Item) -> Item:
    return item


async def over_all(items: AsyncIterator[Item]) -> int:
    return len([item async for item in items])


def project(request: Item, sent: Priced, facts: Any) -> Priced:
    return sent


async def project_later(request: Item, sent: Priced, facts: Any) -> Priced:
    return sent


def refused(path: Path, **options: Any) -> InvalidPipeline:
    """How a file is refused."""
    with pytest.raises(InvalidPipeline) as error:
        load(path, **options)
    return error.value


class Opaque:
    """Nothing that JSON could be read into."""

    def __init__(self, *parts: object) -> None:
        self.parts = parts


NUMBER = 5
