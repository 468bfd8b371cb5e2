"""`manage.py stepwell …`: Stepwell's command line with the project's engine."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from stepwell._cli.main import main

APP = "stepwell.contrib.django:engine"


class Command(BaseCommand):
    help = "Stepwell's command line with the project's engine: worker, ls, show, signal, …"
    requires_system_checks = ()  # a badly configured worker reports it itself

    def run_from_argv(self, argv: list[str]) -> None:
        """Pass all words on, except those that `manage.py` itself has read."""
        parser = CommandParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--settings")
        parser.add_argument("--pythonpath")
        _, words = parser.parse_known_args(argv[2:])
        sys.exit(main(words, prog=f"{_shown(argv[0])} {argv[1]}", app=APP))

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("words", nargs=argparse.REMAINDER, help="the command and its arguments, for call_command")

    def handle(self, *args: Any, **options: Any) -> None:
        code = main([str(word) for word in options["words"]], prog="manage.py stepwell", app=APP)
        if code:
            raise CommandError(f"stepwell ended with exit code {code}", returncode=code)


def _shown(program: str) -> str:
    name = program.rpartition("/")[2]
    return "python -m django" if name == "__main__.py" else name
