"""How often the collector of cycles runs, in a process that only works."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from stepwell._cli import garbage_collector


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
def test_the_garbage_collector_runs_less_often_unless_it_was_configured(
    said: tuple[int, int, int], found: tuple[int, int, int]
) -> None:
    gc.set_threshold(*said)

    garbage_collector.reduce_work()

    assert gc.get_threshold() == found
