"""Whether the process behind a worker's row is dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from stepwell._lease.host_identity import is_dead, this_host
from stepwell._store.registrations.workers import Neighbour


def test_this_process_is_alive() -> None:
    place = this_host()

    assert (place.pid, place.host != "") == (os.getpid(), True)
    assert not is_dead(Neighbour(1, place.pid, place.process))


def test_a_pid_that_belongs_to_a_later_process_is_dead() -> None:
    assert is_dead(Neighbour(1, os.getpid(), "1"))


def test_a_process_that_ended_is_dead() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()

    assert is_dead(Neighbour(1, ended.pid, "12345"))


def test_a_process_that_runs_is_alive_and_a_zombie_is_dead() -> None:
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE) as child:
        neighbour = Neighbour(1, child.pid, "unknown")

        alive = is_dead(neighbour)
        os.kill(child.pid, signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and its parent has not reaped it
        dead = is_dead(neighbour)

    assert (alive, dead) == (False, True)


def test_a_running_pid_counts_as_alive_if_the_system_shows_no_more() -> None:
    assert not is_dead(Neighbour(1, os.getpid(), "unknown"))
