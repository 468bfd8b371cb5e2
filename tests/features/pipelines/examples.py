"""Pipelines that the tests run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

from stepwell.pipelines import Pipeline, await_, many_to_many, many_to_one, one_to_many, one_to_one


@dataclass
class Numbers:
    upto: int


@dataclass
class Item:
    number: int


@dataclass
class Priced:
    number: int
    price: int


@one_to_many
async def count(numbers: Numbers) -> AsyncIterator[Item]:
    for n in range(numbers.upto):
        yield Item(n)


@one_to_one
async def double(item: Item) -> Item:
    return Item(item.number * 2)


@one_to_one
async def cheaper(priced: Priced) -> Priced:
    return Priced(priced.number, priced.price - 1)


@one_to_many
def twice_if_odd(priced: Priced) -> list[Priced]:
    return [priced] * (priced.price % 3)


@many_to_one
async def total(priced: AsyncIterator[Priced]) -> int:
    return sum([p.price async for p in priced])


@many_to_many
async def numbered(priced: AsyncIterator[Priced]) -> AsyncIterator[list[int]]:
    n = 0
    async for p in priced:
        yield [n, p.number, p.price]
        n += 1


ask_each = await_("Ask prices", over="manual", input=Item, output=Priced, window=3)
itemized = Pipeline("itemized", [count, double, ask_each, cheaper, twice_if_odd, numbered])
summed = Pipeline("summed", [count, ask_each, total])
plain = Pipeline("plain", [count, double])
one = Pipeline("one", [await_("Ask one", over="manual", input=Item, output=Priced), cheaper])
many = Pipeline(
    "many",
    [count, await_("Ask all", over="manual", input=Item, output=Priced, cardinality="MANY_TO_MANY"), total],
)
