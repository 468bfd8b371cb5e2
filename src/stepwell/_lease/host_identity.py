"""The process identity of this worker, and whether another process of the same host is dead."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from stepwell._store.registrations.workers import HostIdentity, Neighbour

ZOMBIE = "zombie"  # dead, and not yet waited for by its parent


def this_host() -> HostIdentity:
    """The identity of this process, by which its successor on the same host can tell that it died."""
    pid = os.getpid()
    return HostIdentity(host=socket.gethostname(), boot=_boot(), pid=pid, process=_process(pid) or "unknown")


def is_dead(neighbour: Neighbour) -> bool:
    """Whether the process has ended, or its pid belongs to another one. Only for neighbours of this host and boot."""
    if neighbour.pid == os.getpid() and neighbour.process == _process(neighbour.pid):
        return False
    try:
        os.kill(neighbour.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    started = _process(neighbour.pid)
    return started == ZOMBIE or (started is not None and neighbour.process not in (started, "unknown"))


def _boot() -> str:
    """A name for this boot and pid namespace: pids are comparable only within it."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return "unknown"
    return f"{boot}/{namespace}"


def _process(pid: int) -> str | None:
    """When a process started, in ticks since boot; None if the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    fields_after_name = stat.rpartition(")")[2].split()
    return ZOMBIE if fields_after_name[0] == "Z" else fields_after_name[19]
