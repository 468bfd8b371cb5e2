"""Bodies that cost much to read for their size, and bodies that were changed in transit."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

MB = 1024 * 1024
UNITS = {
    "floats at the end of their range": "1e308", "the smallest floats": "5e-324", "floats": "1.7976931348623157e308",
    "empty lists": "[]", "empty objects": "{}", "lists of one": "[0]", "objects of one": '{"":0}', "small numbers": "1",
    "empty texts": '""', "commas in texts": '",,,,,,,"', "quotes in texts": '"\\"\\"\\""',
    "lists in lists": "[" * 9 + "]" * 9, "objects in objects": '{"":' * 450 + "0" + "}" * 450,
    "numbers beyond floats": "1e131071", "zeros": "0e-16383", "NULs": '"\\u0000"', "surrogates": '"\\ud800"',
    "backslashes": '"\\\\\\\\"', "long numbers": "9" * 900, "objects of two alike": '{"a":0,"a":0}',
}  # fmt: skip
ENDS = {"": "", "and a NUL": ',"\\u0000"', "and a surrogate": ',"\\ud800"', "and a lone brace": ",{"}


def worst_payloads(size: int = MB, values: int = 131_000) -> Iterator[tuple[str, str]]:
    """Payloads of the maximum number of bytes, and of values, with and without something bad at the end."""
    for name, unit in UNITS.items():
        weight = max(1, unit.count("[") + unit.startswith("{") + unit.count(":"))
        for most, number in (("bytes", size // (len(unit) + 1) - 2), ("values", values // weight)):
            for end, tail in ENDS.items():
                whole = ",".join([unit] * min(number, size // (len(unit) + 1) - 2))
                yield f"{name}, {most} {end}".strip(), f"[{whole}{tail}]"


def mutations(good: dict[str, object], number: int, seed: int = 18) -> Iterator[bytes]:
    """Bodies of a valid completion, each changed in one to four places."""
    dice = random.Random(seed)  # noqa: S311 - of a test
    body = json.dumps(good).encode()
    pieces = [
        b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\0", b"\xff", b"\xed\xa0\x80", b"1e999",
        b"-", b"NaN", b"null", b"\\u0000", b"\\ud800", b"9" * 5_000, b"[" * 2_000,
        b'"actor":"x",', b"\xef\xbb\xbf", b" ", b"\r\n", b"0",
    ]  # fmt: skip
    for _ in range(number):
        changed = bytearray(body)
        for _ in range(dice.randrange(1, 5)):
            first = dice.randrange(len(changed) + 1)
            last = min(len(changed), first + dice.randrange(12))
            match dice.randrange(4):
                case 0:
                    del changed[first:last]
                case 1:
                    changed[first:first] = dice.choice(pieces)
                case 2:
                    changed[first:last] = dice.randbytes(last - first)
                case 3:
                    changed[first:first] = changed[first:last]
        yield bytes(changed)
