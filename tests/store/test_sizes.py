"""M6: the size computed in Python is that of the text which Postgres writes, and so is the number of values."""

from __future__ import annotations

import random
import re
import struct
from typing import Any

from stepwell._core.serialization.bounds import count_values, size_written, without_strings
from stepwell._core.serialization.codec import encode_value
from stepwell.testing import Harness
from tests.conftest import MakeHarness

NUMBERS = 2_000
NEGATIVE_ZERO = re.compile(rb"-0\.0(?![0-9])")
TEXTS = ["", "a", "é", "😀", "\\", '"', '\\"', ",[{:", "\n\t\x01\x7f", "12e308", "\u2028", "null"]


def any_float(dice: random.Random) -> float:
    """Of any magnitude; half of them short, as people write them."""
    number = struct.unpack("d", dice.randbytes(8))[0]
    if not abs(number) < float("inf"):
        return 1.7976931348623157e308
    return float(f"{number:.{dice.randrange(17)}e}") if dice.random() < 0.5 and abs(number) < 1e308 else number


def any_value(dice: random.Random, depth: int = 0) -> Any:
    match dice.randrange(5 if depth > 3 else 7):
        case 0:
            return any_float(dice) + 0.0
        case 1:
            return dice.choice([1, dice.randrange(10**15, 10**18)]) * 10.0 ** dice.randrange(-30, 30)
        case 2:
            return dice.choice([True, False, None, 0, -7, 10**30])
        case 3 | 4:
            return dice.choice(TEXTS) * dice.randrange(3)
        case 5:
            return [any_value(dice, depth + 1) for _ in range(dice.randrange(5))]
        case _:
            return {dice.choice(TEXTS) + str(n): any_value(dice, depth + 1) for n in range(dice.randrange(4))}


async def measured(h: Harness, texts: list[str]) -> list[tuple[int, int]]:
    rows = await h.sql(
        "select octet_length(t::jsonb::text) as size, jsonb_array_length(jsonb_path_query_array(t::jsonb, "
        "'strict $.**.type()')) as number from unnest($1::text[]) with ordinality as g(t, place) order by place", texts
    )  # fmt: skip
    return [(row["size"], row["number"]) for row in rows]


async def test_a_size_computed_in_python_equals_the_size_that_postgres_writes(make_harness: MakeHarness) -> None:
    h = await make_harness([])
    dice = random.Random(20)  # noqa: S311 - values of a test
    texts = [encode_value(any_value(dice), "payload") for _ in range(NUMBERS)]

    expected = await measured(h, texts)

    for text, (size, number) in zip(texts, expected, strict=True):
        encoded = text.encode()
        bare = without_strings(encoded)
        written = size_written(encoded, bare) - len(NEGATIVE_ZERO.findall(bare))
        assert (written, count_values(bare)) == (size, number), text
