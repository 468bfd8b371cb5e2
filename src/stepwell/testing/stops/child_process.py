"""A process that forks workers and clients, each of which stops itself between two statements.

Importing everything takes half a second, forking a few milliseconds. Each forked process has its own pid, by which
it is halted, continued and killed; it dies when the process that asked for it does.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ctypes
import gc
import importlib
import json
import logging
import os
import pickle
import select
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from functools import reduce
from typing import Any

from stepwell import Engine
from stepwell._process import probes
from stepwell.errors import DatabaseError
from stepwell.testing.probes import crash

Reference = tuple[str, str]
"""A module, and the name of something in it."""
SIGNALS = {"halt": signal.SIGSTOP, "kill": signal.SIGKILL}
PAUSE = 0.1  # of a client before it repeats a call that an outage has ended
PR_SET_PDEATHSIG = 1
LARGEST_READ = 1 << 20


def resolve(reference: Reference) -> Any:
    """The object of that name."""
    module, name = reference
    return reduce(getattr, name.split("."), importlib.import_module(module))


def packed(value: Any) -> str:
    """A value as one line of text."""
    return base64.b64encode(pickle.dumps(value)).decode()


def unpacked(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))  # noqa: S301 - the parent process has made it


class _Stopper:
    """Reports which gaps this process passes, and stops it in the wanted one."""

    def __init__(self, wanted: tuple[str, str, str | None] | None, how: str, say: Callable[..., None]) -> None:
        self._wanted = wanted
        self._how = how
        self._send = say
        self._seen: set[tuple[str, str, str | None]] = set()

    def look(self, facts: Mapping[str, Any]) -> None:
        gap = (facts["transaction"], facts["after"], facts["before"])
        if gap not in self._seen:
            self._seen.add(gap)
            self._send(passed=gap)
        if gap == self._wanted:
            self._wanted = None
            self._send(stopped=facts["backend"])
            os.kill(os.getpid(), SIGNALS[self._how])


async def _live(request: Mapping[str, Any], say: Callable[..., None]) -> None:
    wanted = request["gap"]
    probes.hooks[probes.GAP] = _Stopper(None if wanted is None else tuple(wanted), request["how"], say).look
    if request["crash"] is not None:
        crash(request["crash"])
    options = unpacked(request["options"])
    machines = [resolve(reference) for reference in request["machines"]]
    engine = Engine(request["url"], machines=machines, **options)
    if request["act"] is None:
        await _work(engine, say)
    else:
        await _act(engine, resolve(request["act"]))


async def _work(engine: Engine, say: Callable[..., None]) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    async with engine, engine.worker():
        say(ready=True)
        await told.wait()


async def _act(engine: Engine, act: Callable[[Engine], Awaitable[None]]) -> None:
    """Run a client's act, and repeat it after a lost connection, as a client would."""
    while True:
        try:
            return await act(engine)
        except DatabaseError as error:
            logging.getLogger("stepwell").warning("client: %s; it repeats its calls", error)
            await asyncio.sleep(PAUSE)


def _fork(request: Mapping[str, Any]) -> int:
    for reference in [*request["machines"], *([request["act"]] if request["act"] else [])]:
        resolve(reference)  # imported once, for all later forks
    unpacked(request["options"])
    gc.freeze()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _settle_in(parent, request["log"])
        asyncio.run(_live(request, lambda **said: _send(request["id"], **said)))
        code = 0
    except BaseException:  # noqa: BLE001 - as an interpreter does
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _settle_in(parent: int, log: str) -> None:
    """Set up what a new process would have, write its log into a file, and end with the parent."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    logging.basicConfig(format="%(asctime)s [%(process)d] %(message)s", stream=sys.stderr)


def _send(number: int, **said: Any) -> None:
    """One write, so that the lines of several processes do not mix."""
    os.write(1, (json.dumps({"id": number, **said}) + "\n").encode())


def serve(path: str) -> None:
    """Fork what is asked for on stdin, and report how it ended, until that is closed; `path` is for imports, as
    JSON.
    """
    sys.path[:] = json.loads(path)
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    numbers: dict[int, int] = {}  # pid to number
    rest = b""
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if 0 in ready:
            read = os.read(0, LARGEST_READ)
            if not read:
                return _end(numbers)
            *lines, rest = (rest + read).split(b"\n")
            for line in lines:
                _start(json.loads(line), numbers)
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 1_000)
            _report(numbers)


def _start(request: Mapping[str, Any], numbers: dict[int, int]) -> None:
    try:
        pid = _fork(request)
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything
        _send(request["id"], ended=1, problem=f"{type(error).__name__}: {error}")
    else:
        numbers[pid] = request["id"]
        _send(request["id"], pid=pid)


def _report(numbers: dict[int, int]) -> None:
    while numbers:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        _send(numbers.pop(pid), ended=os.waitstatus_to_exitcode(status))


def _end(numbers: dict[int, int]) -> None:
    for pid in numbers:
        os.kill(pid, signal.SIGKILL)
