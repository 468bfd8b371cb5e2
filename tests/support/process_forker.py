"""A process that has imported everything once, and forks the worker processes of tests.

Importing takes half a second. A forked process is like any other, with a pid of its own: it can be frozen and killed.
The forker ends when the process that started it does.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Self

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
        """Run `python -m module arguments…`, in the folder of the repository."""
        reads, writes = os.pipe()
        try:
            said, door = await ask_for({"module": module, "arguments": arguments, "imports": [module]}, [writes])
        finally:
            os.close(writes)
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


async def run_forked(
    module: str, arguments: Sequence[str], *, imports: Sequence[str], cwd: str, env: Mapping[str, str], given: str
) -> tuple[int, str, str]:
    """Run `python -m module arguments…`, to its end: exit code, output, errors."""
    with TemporaryFile() as stdin, TemporaryFile() as stdout, TemporaryFile() as stderr:
        stdin.write(given.encode())
        stdin.seek(0)
        request = {"module": module, "arguments": arguments, "imports": imports, "cwd": cwd, "env": env}
        said, door = await ask_for(request, [stdout.fileno(), stdin.fileno(), stderr.fileno()])
        pid = int(await said.readline())
        try:
            code = int(await said.readline())
        except asyncio.CancelledError:
            os.kill(pid, signal.SIGKILL)
            raise
        finally:
            door.close()
        await door.wait_closed()
        stdout.seek(0)
        stderr.seek(0)
        return code, stdout.read().decode(), stderr.read().decode()


async def ask_for(
    request: Mapping[str, Any], descriptors: Sequence[int]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask the forker for a process with these as stdout, stdin, stderr; it sends its pid, and later its exit code."""
    control = socket.socket(socket.AF_UNIX)
    control.connect(forker())
    socket.send_fds(control, [json.dumps(request).encode()], descriptors)
    return await asyncio.open_connection(sock=control)


@cache
def forker() -> str:
    """The socket of this test process's forker, which is started with the first request."""
    folder = tempfile.mkdtemp(prefix="forker")
    path = str(Path(folder) / "door")
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.process_forker", path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        cwd=ROOT
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdout.readline()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(process.wait)
    atexit.register(process.stdin.close)  # called first
    return path


def serve(path: str) -> None:
    """Fork requested processes, and report how they ended, until no client is connected."""
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
        with contextlib.suppress(OSError), asking.pop(pid) as control:  # the client may be gone
            control.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _fork(door: socket.socket) -> tuple[int, socket.socket]:
    control, _ = door.accept()
    text, descriptors, _, _ = socket.recv_fds(control, LARGEST_REQUEST, 3)
    request = json.loads(text)
    for module in request["imports"]:  # for all later processes
        importlib.import_module(module)
    gc.freeze()
    pid = os.fork()
    if pid == 0:
        _settle_in(request, *descriptors)
        _run(request["module"])
    for descriptor in descriptors:
        os.close(descriptor)
    return pid, control


def _settle_in(request: Mapping[str, Any], stdout: int, stdin: int | None = None, stderr: int | None = None) -> None:
    """Set up what a new process would have from the beginning."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(stdout, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY) if stdin is None else stdin, 0)
    if stderr is not None:
        os.dup2(stderr, 2)
    os.closerange(3, 256)
    if "cwd" in request:
        os.chdir(request["cwd"])
        sys.path[0] = request["cwd"]
        os.environ.clear()
        os.environ.update(request["env"])
    sys.argv = [request["module"], *request["arguments"]]


def _run(module: str) -> None:
    """Run that module, and end as an interpreter does."""
    sys.modules.pop(module, None)
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:  # noqa: BLE001 - so does an interpreter
        traceback.print_exc()
        code = 1
    finally:
        atexit._run_exitfuncs()  # which `os._exit` leaves out
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
