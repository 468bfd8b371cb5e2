"""Sample files, the same in every run: `python -m examples.csv_payments.samples 1000 payments.csv`."""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

HEADER: Final = "ID,Recipient,Amount,Currency"
FIRST: Final = "1,Natasha Thomas,5047.29,AUD"
FORENAMES: Final = (
    "Natasha", "Ana", "Bo", "Chidi", "Dmitri", "Elif", "Fatima", "Goran", "Hana", "Ines", "João", "Kwame", "Lærke",
    "Mei", "Noor", "Oluchi", "Priya", "Quentin", "Rosa", "Siân",
)  # fmt: skip
SURNAMES: Final = (
    "Thomas", "Adeyemi", "Bianchi", "Chen", "Dubois", "Eriksen", "Fischer", "García", "Haddad", "Ivanova", "Jensen",
    "Kowalski", "Lopez", "Müller", "Nakamura", "O'Brien", "Petrov", "Quispe", "Rossi", "Singh",
)  # fmt: skip
CURRENCIES: Final = ("AUD", "BRL", "CHF", "EUR", "GBP", "INR", "JPY", "NOK", "PLN", "USD")


def sample(rows: int) -> Iterator[str]:
    """The lines of a file: payments with the ids 1 to `rows`."""
    chance = random.Random(7)  # noqa: S311 - names and amounts of a sample are no secret
    yield HEADER
    for number in range(1, rows + 1):
        name = f"{chance.choice(FORENAMES)} {chance.choice(SURNAMES)}"
        cents = chance.randrange(100, 1_000_000)
        row = f"{number},{name},{cents // 100}.{cents % 100:02},{chance.choice(CURRENCIES)}"
        yield FIRST if number == 1 else row


def write_sample(path: Path, rows: int) -> None:
    path.write_text("".join(f"{line}\n" for line in sample(rows)), encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=int)
    parser.add_argument("file", type=Path)
    given = parser.parse_args()
    write_sample(given.file, given.rows)
