"""The event loop of the benchmark: uvloop's if it is installed, as in `stepwell worker`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    return import_module("uvloop").new_event_loop if find_spec("uvloop") else None


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run to the end, or until SIGTERM or SIGINT; contexts around it, such as a server, are left in both cases."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(_stoppable(main))


async def _stoppable(main: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(main)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await task
