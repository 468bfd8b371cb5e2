"""`stepwell worker`: run the app's instances until SIGTERM or SIGINT, then drain."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from traceback import print_exception
from types import FrameType
from typing import Any, NoReturn

from stepwell._cli import garbage_collector, logs
from stepwell._cli.app import add_app, load_app
from stepwell._cli.exit_codes import NOT_SO, OK, SIGNALLED, UsageError, exit_code, reported
from stepwell._cli.flag_values import seconds
from stepwell._cli.output import to_json
from stepwell._cli.processes import MOST, supervise
from stepwell._worker.shutdown import waited_for
from stepwell.config import parse_fair_by, parse_queues
from stepwell.engine import Engine
from stepwell.errors import StepwellError

log = logging.getLogger("stepwell")

LAST_WAIT = 1.0  # seconds that a thread of the loop's pool may run on after the worker has ended

EXAMPLES = """\
examples:
  stepwell worker shop.app:engine --queue default=20
  stepwell worker shop.app:engine --queue checkout=50 --queue mail=5 --drain-timeout 25
  stepwell worker shop.app:engine --queue default=50 --fair-by default=tenant
  stepwell worker shop.app:engine --processes 4           four such workers under one parent

SIGTERM or SIGINT: no new claims, running steps end within --drain-timeout, exit 0. A second one stops at once; the
steps it stops run again elsewhere. When the schema becomes too new for this Stepwell, it drains too, and exits 3.
When ready, one line on stdout: worker ID ready: default=20"""

DURATIONS = {
    "lease": "how long a worker without a heartbeat keeps its claims",
    "heartbeat": "how often the lease is renewed; at most a third of it",
    "poll": "how often to look for work without a notification",
    "max_poll": "the longest pause between polls while nothing happens",
    "drain_timeout": "how long running steps may take after a stop",
    "reap": "how often to look for dead workers",
}
NUMBERS = {
    "prefetch": "claims held ready per queue beyond its slots",
    "min_demand": "free slots from which on to claim",
    "run_ahead": "steps that run on one claim before the instance returns to its queue",
    "max_crashes": "crashes in one step after which the instance fails",
}


def configure(parser: ArgumentParser) -> None:
    add_app(parser)
    parser.add_argument(
        "--queue", metavar="NAME=SLOTS", action="append", dest="queues",
        help="a queue to serve, and how many of its steps may run at a time; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--fair-by", metavar="NAME=tenant", action="append",
        help="a queue in which tenants take turns; may be repeated",
    )  # fmt: skip
    settings = parser.add_argument_group("settings", "by default those of the engine, or STEPWELL_… in the environment")
    for name, meaning in DURATIONS.items():
        settings.add_argument(_flag(name), metavar="SECONDS", type=seconds, help=meaning)
    for name, meaning in NUMBERS.items():
        settings.add_argument(_flag(name), metavar="N", type=int, help=meaning)
    parser.add_argument(
        "--processes", metavar="N", type=int, default=1,
        help="worker processes, each with these queues and its own lease; a killed one is replaced",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="log JSON lines, and report readiness in JSON")
    parser.epilog = EXAMPLES


def _flag(setting: str) -> str:
    return f"--{setting.replace('_', '-')}"


def run(args: Namespace) -> int:
    logs.configure(verbose=args.verbose, as_json=args.json)
    if args.processes == 1:
        return _run_one(args)
    if not 1 < args.processes <= MOST:
        raise UsageError(f"--processes: {args.processes} is out of range (1 to {MOST})")
    return supervise(args.processes, lambda: reported(lambda: _run_one(args), verbose=args.verbose))


def _run_one(args: Namespace) -> int:
    signals = _Signals()
    engine = load_app(args.app)
    garbage_collector.reduce_work()
    settings = {name: value for name in (*DURATIONS, *NUMBERS) if (value := getattr(args, name)) is not None}
    if args.queues:
        settings["queues"] = parse_queues(args.queues)
    if args.fair_by:
        settings["fair_by"] = parse_fair_by(args.fair_by)
    runner = asyncio.Runner(loop_factory=_loop_factory())
    problem: BaseException | None = None
    try:
        runner.run(_work(engine, settings, signals, as_json=args.json))
    except BaseException as error:
        problem = error
        raise
    finally:
        with _left_in_time(problem):
            runner.close()
    return OK


async def _work(engine: Engine, settings: dict[str, Any], signals: _Signals, *, as_json: bool) -> None:
    queues = dict(settings.get("queues", engine.settings.queues))
    async with engine:
        async with engine.worker(**settings) as worker:
            served = ", ".join(f"{name}={slots}" for name, slots in queues.items())
            line = f"worker {worker.id} ready: {served}"
            print(to_json({"ready": worker.id, "queues": queues}) if as_json else line, flush=True)
            received = await _first(signals.first(), worker.retirement.reason())
            if isinstance(received, str):
                log.info("%s: draining, %d steps are running; a second signal stops at once", received, worker.running)
        log.info("worker: stopped, %d steps were committed", worker.stats.committed)
    problem = received if isinstance(received, StepwellError) else None
    if worker.stuck_threads or worker.left_behind:  # a cancelled step does not end the thread that it waits for
        _leave_behind(problem)
    if problem is not None:
        raise problem


async def _first(*waits: Coroutine[Any, Any, Any]) -> Any:
    """The result of the first one that returns; the others are cancelled."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    return done.pop().result()


@contextmanager
def _left_in_time(problem: BaseException | None) -> Iterator[None]:
    """Bound the end of the loop, which would wait for every thread of its pool, even for one that has outlived its
    step.
    """

    def leave() -> None:
        if threads := waited_for():
            log.warning("worker: exits while threads of its steps still run: %s", ", ".join(threads))
            _leave_behind(problem)

    timer = threading.Timer(LAST_WAIT, leave)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _leave_behind(problem: BaseException | None) -> NoReturn:
    """Exit without waiting for the threads, and without the interpreter's shutdown, which would wait for them."""
    code = OK if problem is None else NOT_SO
    if isinstance(problem, StepwellError):
        print(f"stepwell: {problem}", file=sys.stderr)
        code = exit_code(problem)
    elif problem is not None:
        print_exception(problem)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _Signals:
    """SIGTERM and SIGINT: the first asks for a drain, the second ends the process.

    Not the handlers of the loop, which do not run while a step blocks it.
    """

    def __init__(self) -> None:
        self._received: signal.Signals | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        if self._received is not None:
            os._exit(SIGNALLED + number)
        self._received = signal.Signals(number)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._event.set)

    async def first(self) -> str:
        """Wait for the first signal, if none has come yet; returns its name."""
        self._loop = asyncio.get_running_loop()
        while self._received is None:
            await self._event.wait()
        return self._received.name


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop factory of uvloop, if it is installed."""
    if find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory
