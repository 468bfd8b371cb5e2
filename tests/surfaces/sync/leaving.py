"""A program that uses `engine.sync` and ends without closing it.

    python -m tests.surfaces.sync.leaving call|worker|thread [URL]
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress

from stepwell import Engine, EngineClosed
from tests.surfaces.sync.machines import MACHINES, Doubled, Waiter

how, url = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
engine = Engine(url, machines=MACHINES)
worker = engine.sync.worker()
match how:
    case "call":
        engine.sync.start(Doubled)
    case "worker":
        worker.__enter__()
        engine.sync.start(Doubled).result(timeout=30)
    case "thread":
        handle = engine.sync.start(Waiter)

        def wait() -> None:
            with suppress(EngineClosed):
                handle.result()

        threading.Thread(target=wait, daemon=True).start()
        engine.sync.check()
print("end")  # noqa: T201 - what the test reads
