"""A process that has imported everything once, and forks the worker processes of tests: importing takes half a second.

What it forks is a process like any other, with a pid of its own: it can be frozen and killed. It ends when whoever
started it does.
"""

from __future__ import annotations

import array
import asyncio
import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]
LARGEST_REQUEST = 1_000_000


class Forked:
    """A process that was forked, as `asyncio.subprocess.Process` shows one."""

    def __init__(
        self, said: asyncio.StreamReader, door: asyncio.StreamWriter, stdout: asyncio.StreamReader, pid: int
    ) -> None:
        self._said = said
        self._door = door
        self.stdout = stdout
        self.pid = pid
        self.returncode: int | None = None
        self._watching = asyncio.create_task(self._watch())

    @classmethod
    async def start(cls, module: str, arguments: Sequence[str]) -> Self:
        """What `python -m module arguments…` would do."""
        control = socket.socket(socket.AF_UNIX)
        reads, writes = os.pipe()
        try:
            control.connect(nursery())
            request = json.dumps([module, *arguments]).encode()
            descriptors = array.array("i", [writes])
            control.sendmsg([request], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
        finally:
            os.close(writes)
        said, door = await asyncio.open_connection(sock=control)
        stdout = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(stdout)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(reads, "rb"))
        return cls(said, door, stdout, int(await said.readline()))

    async def _watch(self) -> None:
        self.returncode = int(await self._said.readline())
        self._door.close()
        await self._door.wait_closed()

    async def wait(self) -> int:
        await asyncio.shield(self._watching)
        assert self.returncode is not None
        return self.returncode

    async def communicate(self) -> tuple[bytes, None]:
        said = await self.stdout.read()
        await self.wait()
        return said, None

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def nursery() -> str:
    """Where the nursery of this test process listens; it is started for the first who asks."""
    path = str(Path(tempfile.mkdtemp(prefix="nursery")) / "door")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.nursery", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    atexit.register(process.wait)
    atexit.register(process.stdin.close)  # called first
    return path


def serve(path: str) -> None:
    """Fork who is asked for, and tell who asked how it ended, until nobody is there who could ask."""
    door = socket.socket(socket.AF_UNIX)
    door.bind(path)
    door.listen()
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    asking: dict[int, socket.socket] = {}
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        ready, _, _ = select.select([sys.stdin, door, woken], [], [])
        if woken in ready:
            os.read(woken, 1_000)
            _tell(asking)
        if door in ready:
            pid, control = _fork(door)
            asking[pid] = control
            control.sendall(f"{pid}\n".encode())
        if sys.stdin in ready:
            return


def _tell(asking: dict[int, socket.socket]) -> None:
    while asking:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with contextlib.suppress(OSError), asking.pop(pid) as control:  # who asked may be gone
            control.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _fork(door: socket.socket) -> tuple[int, socket.socket]:
    control, _ = door.accept()
    request, [stdout], _, _ = socket.recv_fds(control, LARGEST_REQUEST, 1)
    module, *arguments = json.loads(request)
    importlib.import_module(module)  # for all who come after
    gc.freeze()
    pid = os.fork()
    if pid == 0:
        _run(module, arguments, stdout)
    os.close(stdout)
    return pid, control


def _run(module: str, arguments: list[str], stdout: int) -> None:
    """Be that module, and end."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(stdout, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.closerange(3, 256)
    sys.argv = [module, *arguments]
    del sys.modules[module]
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - as an interpreter does
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
