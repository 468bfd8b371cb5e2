"""The event loop of the benchmark: uvloop's where it is installed, as in `stepwell worker`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    return import_module("uvloop").new_event_loop if find_spec("uvloop") else None


def run(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main)
