"""`stepwell worker`: run the app's instances until SIGTERM or SIGINT, then drain."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import FrameType
from typing import Any, NoReturn

from stepwell._cli import collector, logs
from stepwell._cli.app import add_app, load_app
from stepwell._cli.exits import OK, SIGNALLED, UsageError, reported
from stepwell._cli.output import to_json
from stepwell._cli.processes import MOST, supervise
from stepwell._cli.values import seconds
from stepwell.config import parse_fair_by, parse_queues
from stepwell.engine import Engine

log = logging.getLogger("stepwell")

EXAMPLES = """\
examples:
  stepwell worker shop.app:engine --queue default=20
  stepwell worker shop.app:engine --queue checkout=50 --queue mail=5 --drain-timeout 25
  stepwell worker shop.app:engine --queue default=50 --fair-by default=tenant
  stepwell worker shop.app:engine --processes 4           four such workers under one parent

SIGTERM or SIGINT: no new claims, running steps end within --drain-timeout, exit 0. A second one stops at once; what
ran then runs again elsewhere. When ready, one line on stdout: worker 3 ready: default=20"""

DURATIONS = {
    "lease": "how long a silent worker keeps its claims",
    "heartbeat": "how often the lease is renewed; at most a third of it",
    "poll": "how often to look for work without being told",
    "max_poll": "how far polling slows down while nothing happens",
    "drain_timeout": "how long running steps may take at the end",
    "reap": "how often to look for dead workers",
}
NUMBERS = {
    "prefetch": "claims held ready per queue beyond its slots",
    "min_demand": "free slots worth a claim",
    "run_ahead": "steps that follow on one claim before the instance goes back to its queue",
    "max_crashes": "deaths of workers in one step before its instance fails",
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
        help="worker processes, each with these queues and a lease of its own; one that is killed is replaced",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="log JSON lines, and say ready in JSON")
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
    collector.relieve()
    settings = {name: value for name in (*DURATIONS, *NUMBERS) if (value := getattr(args, name)) is not None}
    if args.queues:
        settings["queues"] = parse_queues(args.queues)
    if args.fair_by:
        settings["fair_by"] = parse_fair_by(args.fair_by)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(_work(engine, settings, signals, as_json=args.json))
    return OK


async def _work(engine: Engine, settings: dict[str, Any], signals: _Signals, *, as_json: bool) -> None:
    queues = dict(settings.get("queues", engine.settings.queues))
    async with engine:
        async with engine.worker(**settings) as worker:
            served = ", ".join(f"{name}={slots}" for name, slots in queues.items())
            line = f"worker {worker.id} ready: {served}"
            print(to_json({"ready": worker.id, "queues": queues}) if as_json else line, flush=True)
            name = await signals.first()
            log.info("%s: draining, %d steps are running; a second signal stops at once", name, worker.running)
        log.info("worker: stopped, %d steps were committed", worker.tally.committed)
    if worker.stuck_threads:
        _leave_behind(worker.stuck_threads)


def _leave_behind(threads: int) -> NoReturn:
    """End without the threads, for which the interpreter would wait as long as they take."""
    log.warning("worker: %d sync steps are still running in threads; ending without them, they run again", threads)
    logging.shutdown()
    sys.stdout.flush()
    os._exit(OK)


class _Signals:
    """SIGTERM and SIGINT: the first asks for a drain, the second ends the process.

    Not the loop's own handlers, as those do not run while a step blocks the loop.
    """

    def __init__(self) -> None:
        self._heard: signal.Signals | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._hear)

    def _hear(self, number: int, _: FrameType | None) -> None:
        if self._heard is not None:
            os._exit(SIGNALLED + number)
        self._heard = signal.Signals(number)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._event.set)

    async def first(self) -> str:
        """Wait for the first one, unless it has come already; returns its name."""
        self._loop = asyncio.get_running_loop()
        while self._heard is None:
            await self._event.wait()
        return self._heard.name


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed."""
    if find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory
