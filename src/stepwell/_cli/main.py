"""The command line: finds the command, runs it, and turns its errors into one line and an exit code."""

from __future__ import annotations

import os
import signal
import sys
from argparse import Action, ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from stepwell._cli.exit_codes import OK, SIGNALLED, reported

COMMANDS = {
    "demo": "watch a checkout survive kill -9, twice, on a Postgres of its own, in seconds",
    "migrate": "bring the schema up to date, check it, or print its SQL",
    "worker": "run instances until SIGTERM",
    "start": "start an instance, and wait for its end if asked to",
    "ls": "list instances, newest first",
    "show": "everything about one instance",
    "tree": "an instance's family: its parents and its children",
    "limits": "list the limits, or change one at run time",
    "queues": "what waits in each queue; pause and resume them",
    "pipelines": "check pipelines in YAML, or draw one",
    "interactions": "list the interactions that wait for a reply",
    "complete": "complete an interaction with a reply",
    "signal": "put a signal into an instance's inbox",
    "wait": "wait until an instance has ended, or is parked",
    "cancel": "cancel an instance and its descendants",
    "retry": "run a failed or cancelled instance again at its step",
    "restart": "continue an instance at a step of your choice",
}
EXAMPLE = "shop.app:engine"  # the app in every command's examples
EXIT_CODES = """\
exit codes:
  0  done
  1  not found, nothing to do, refused, the instance failed, or the schema is outdated
  2  the command line is wrong
  3  the database cannot be reached, or is not what Stepwell needs"""


def main(argv: Sequence[str] | None = None, *, prog: str = "stepwell", app: str | None = None) -> int:
    """Run one command; returns its exit code. With an `app`, the command line is bound to it: no command asks for
    one.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    parser = _build_parser(next((word for word in given if not word.startswith("-")), None), prog, app)
    args = parser.parse_args(given)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # what the locale cannot show
    try:
        code = reported(lambda: int(args.run(args)), verbose=args.verbose)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader closed the pipe. The interpreter flushes once more at exit: into /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return SIGNALLED + signal.SIGPIPE
    except KeyboardInterrupt:
        return SIGNALLED + signal.SIGINT
    return code


def _build_parser(verb: str | None, prog: str = "stepwell", app: str | None = None) -> ArgumentParser:
    """The parser of all commands; only the called one is imported."""
    parser = ArgumentParser(
        prog=prog, description="Durable execution on Postgres.", epilog=EXIT_CODES,
        formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("--version", action=_ShowVersion, nargs=0, help="show program's version number and exit")
    parser.set_defaults(run=lambda _: _show_help(parser), verbose=False)
    commands = parser.add_subparsers(metavar="COMMAND", title="commands", parser_class=_CommandParser)
    for name, summary in COMMANDS.items():
        added = commands.add_parser(
            name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.",
            formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False,
        )  # fmt: skip
        if name == verb:
            command = import_module(f"stepwell._cli.commands.{name}")
            added.set_defaults(app=app)
            command.configure(added)
            added.epilog = _shown_for(prog, app, added.epilog)
            added.add_argument("--verbose", action="store_true", help="show tracebacks, and more of the log")
            added.set_defaults(run=command.run)
    return parser


def _shown_for(prog: str, app: str | None, examples: str | None) -> str | None:
    """A command's examples as they are typed in this command line."""
    if examples is None or app is None:
        return examples
    return examples.replace(f" --app {EXAMPLE}", "").replace(f" {EXAMPLE}", "").replace("stepwell ", f"{prog} ")


class _ShowVersion(Action):
    """Like argparse's own, without finding out the version for every command."""

    def __call__(self, parser: ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version  # noqa: PLC0415 - only --version pays for it

        from stepwell.embedded.programs import release  # noqa: PLC0415

        sys.stdout.write(f"stepwell {version('stepwell')}\n")
        if (found := release()) is not None:
            sys.stdout.write(f"embedded Postgres {found}\n")
        parser.exit()


class _CommandParser(ArgumentParser):
    """Takes words and flags in any order: `signal 42 paid --dedup-key e7 '{"amount": 1}'`."""

    _is_inner = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if self._is_inner:
            return super().parse_known_args(args, namespace)
        self._is_inner = True  # the call below comes back here twice: for the flags and for the words
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_inner = False


def _show_help(parser: ArgumentParser) -> int:
    parser.print_help()
    return OK
