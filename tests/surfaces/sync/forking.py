"""A program that forks while its other threads call: prints what each child and the parent saw, and fails if it hangs.

    python -m tests.surfaces.sync.forking URL
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from pathlib import Path

from stepwell import Engine, SyncHandle
from tests.surfaces.sync.machines import MACHINES, Doubled

CHILDREN = 8
PATIENCE = 30.0


def sockets() -> dict[str, str]:
    """The descriptors that are sockets or polls, and what they are."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:  # the descriptor of this very listing
            continue
        if target.startswith(("socket:", "anon_inode:[eventpoll]")):
            found[entry.name] = target
    return found


def be_child(engine: Engine, inherited: dict[str, str], handle: SyncHandle) -> None:
    """Start and wait through engine.sync, use the parent's handle, collect garbage, and exit as programs do."""
    result = engine.sync.start(Doubled, {"number": 4}).result(timeout=PATIENCE)
    looked = handle.get().id
    gc.collect()
    kept = inherited.items() <= sockets().items()
    os.write(1, f"child {result} {looked == handle.id} {kept}\n".encode())  # in one piece
    sys.exit(0)


def main(url: str) -> None:
    engine = Engine(url, machines=MACHINES)
    with engine.sync.worker():
        handle = engine.sync.start(Doubled)
        handle.result(timeout=PATIENCE)
        over = threading.Event()

        def hammer() -> None:
            while not over.is_set():
                handle.get()

        threads = [threading.Thread(target=hammer) for _ in range(4)]
        for thread in threads:
            thread.start()
        inherited, children = sockets(), []
        for _ in range(CHILDREN):
            pid = os.fork()
            if pid == 0:
                be_child(engine, inherited, handle)
            children.append(pid)
        ended = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        over.set()
        for thread in threads:
            thread.join()
        after = engine.sync.start(Doubled, {"number": 50}).result(timeout=PATIENCE)
        twin = engine.sync._twin
        assert twin is not None
        assert twin._engine._notifier is not None
        kept = inherited.items() <= sockets().items()
        print(f"parent {after} {set(ended)} {twin._engine._notifier.is_listening} {kept}")  # noqa: T201 - what the test reads


if __name__ == "__main__":
    main(sys.argv[1])
