"""How often the collector of circles looks, in a process that only works."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from stepwell._cli import collector


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.parametrize(
    ("said", "found"),
    [((700, 10, 10), (10_000, 10, 10)), ((2_000, 10, 0), (10_000, 10, 0)), ((0, 10, 10), (0, 10, 10)),
     ((800, 5, 5), (800, 5, 5)), ((50_000, 10, 10), (50_000, 10, 10))],
)  # fmt: skip
def test_it_looks_less_often_unless_somebody_has_said_how_often(
    said: tuple[int, int, int], found: tuple[int, int, int]
) -> None:
    gc.set_threshold(*said)

    collector.relieve()

    assert gc.get_threshold() == found
