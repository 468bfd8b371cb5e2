"""A worker in a process of its own, for tests that kill, freeze or cut it off: `python -m … URL [options]`."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import logging
import os
import signal
import sys
from datetime import timedelta
from typing import Any

from stepwell import Engine
from stepwell._worker.running.step_batch import own_task
from stepwell.testing import crash
from tests.support.crash_app import LIMITS, MACHINES, effects_in


def read_settings(text: str) -> dict[str, Any]:
    """Settings from JSON; a number with a fraction is a time in seconds."""
    return {k: timedelta(seconds=v) if isinstance(v, float) else v for k, v in json.loads(text).items()}


async def main(url: str, settings: dict[str, Any], crash_point: str | None, nth: int) -> None:
    stop = asyncio.Event()
    own_task().set_name("main")
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    if crash_point is not None:
        crash(crash_point, nth=nth)
    engine = Engine(url, machines=MACHINES, limits=LIMITS, resources=effects_in(url), **settings)
    async with engine, engine.worker() as worker:
        sys.stdout.write(f"ready {worker.id}\n")
        sys.stdout.flush()
        await stop.wait()


def interrupt_at(nth: int) -> None:
    """Let Ctrl-C come when the loop begins its nth callback."""
    run, numbers = asyncio.Handle._run, itertools.count(1)  # type: ignore[attr-defined]

    def interrupted(handle: asyncio.Handle) -> None:
        if next(numbers) == nth:
            os.kill(os.getpid(), signal.SIGINT)
        run(handle)

    asyncio.Handle._run = interrupted  # type: ignore[attr-defined]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--settings", type=read_settings, default={})
    parser.add_argument("--crash", metavar="POINT")
    parser.add_argument("--nth", type=int, default=1)
    parser.add_argument("--interrupt", metavar="NTH", type=int)
    given = parser.parse_args()
    logging.basicConfig(format="%(asctime)s [%(process)d] %(message)s")
    if given.interrupt is not None:
        interrupt_at(given.interrupt)
    asyncio.run(main(given.url, given.settings, given.crash, given.nth))
