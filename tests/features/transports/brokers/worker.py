"""A worker with a transport over a broker, in a process of its own: `python -m … URL KIND OPTIONS [--crash POINT]`."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from datetime import timedelta
from typing import Any

from stepwell import Engine, transports
from stepwell.testing import crash
from tests.features.interactions.machines import Batch, Expense


def read_options(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a transport from JSON; a number with a fraction is a time in seconds."""
    return {k: timedelta(seconds=v) if isinstance(v, float) else v for k, v in options.items()}


async def main(url: str, kind: str, options: dict[str, Any]) -> None:
    transport = getattr(transports, kind)("broker", **read_options(options))
    engine = Engine(url, machines=[Expense, Batch], transports=[transport])
    async with engine, engine.worker():
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("kind")
    parser.add_argument("options", type=json.loads)
    parser.add_argument("--crash", metavar="POINT", required=True)
    given = parser.parse_args()
    logging.basicConfig(format="%(asctime)s [%(process)d] %(message)s")
    crash(given.crash)
    asyncio.run(main(given.url, given.kind, given.options))
