"""A worker in a process of its own that stops itself once (SIGSTOP) before a statement within a transaction, as a host
that lost its power does: `python -m … URL --before STATEMENT [options]`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from typing import Any

from stepwell._process import probes
from tests.support.worker_process import main, read_settings

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--settings", type=read_settings, default={})
    parser.add_argument("--before", metavar="STATEMENT")
    given = parser.parse_args()

    def stop(gap: dict[str, Any]) -> None:
        if gap["before"] == given.before:
            probes.hooks.pop(probes.GAP)
            os.kill(os.getpid(), signal.SIGSTOP)

    probes.hooks[probes.GAP] = stop
    asyncio.run(main(given.url, given.settings, None, 1))
