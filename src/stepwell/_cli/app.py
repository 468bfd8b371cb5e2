"""Finds the engine of a command: the app's `module:attribute`, a URL, or the one of the environment."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import Any

from stepwell._cli.exit_codes import UsageError
from stepwell.engine import Engine

APP_HELP = "the app's engine, as module:attribute, for example shop.app:engine; the current directory is searched first"


def add_app(parser: ArgumentParser) -> None:
    """Add the argument APP to a command that needs machines, unless the command line is bound to one app."""
    if parser.get_default("app") is None:
        parser.add_argument("app", metavar="APP", help=APP_HELP)


def add_engine_flags(parser: ArgumentParser) -> None:
    """Add the flags that choose the database of a command that needs no machines."""
    if parser.get_default("app") is not None:
        return
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--app", metavar="APP", help=APP_HELP)
    which.add_argument(
        "--database-url", metavar="URL",
        help="postgresql://…; by default $STEPWELL_DATABASE_URL, else the embedded Postgres",
    )  # fmt: skip
    parser.add_argument(
        "--schema", metavar="NAME",
        help="the schema in that database; by default $STEPWELL_SCHEMA, else stepwell. An APP has its own",
    )  # fmt: skip


def chosen_engine(args: Namespace) -> Engine:
    """The engine of `--app`, or one without machines on `--database-url` or the default database."""
    if args.app is None:
        return Engine(args.database_url, **chosen_schema(args))
    if chosen_schema(args):
        raise UsageError("--schema: an app has its own; give it to Engine(schema=…) there, or set STEPWELL_SCHEMA")
    return load_app(args.app)


def chosen_schema(args: Namespace) -> dict[str, Any]:
    """The schema of `--schema`, as a keyword argument of `Engine`."""
    given: str | None = getattr(args, "schema", None)
    return {} if given is None else {"schema": given}


def load_app(spec: str) -> Engine:
    """Import `module:attribute`; errors say which half is wrong, and how."""
    module_name, _, attribute = spec.partition(":")
    if not module_name or not attribute:
        raise UsageError(f"{spec!r} is not of the form module:attribute, for example app:engine")
    found: object = _import(module_name)
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise UsageError(f"{module_name} has no {attribute!r}{_hint(found, name)}")
        found = getattr(found, name)
    if not isinstance(found, Engine):
        raise UsageError(f"{spec} is {_described(found)}, not a stepwell.Engine")
    return found


def _import(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise UsageError(f"there is no module {error.name!r}, neither in {here} nor installed") from error
        raise UsageError(f"importing {name!r} failed: {error}") from error
    except Exception as error:  # the app's own code may raise anything
        problem = f"{type(error).__name__}: {error}"
        raise UsageError(f"importing {name!r} failed: {problem} ({_place(error, here)})") from error


def _place(error: Exception, here: str) -> str:
    """Where the error was raised: the last frame in the app's own code, or else the last frame of all."""
    frames = extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.startswith(here) and "site-packages" not in frame.filename]
    last = (own or frames)[-1]
    return f"{last.filename}:{last.lineno}"


def _hint(owner: object, wrong: str) -> str:
    """A similar name, or the first engine of the module."""
    engines = sorted(name for name, value in vars(owner).items() if isinstance(value, Engine))
    if close := get_close_matches(wrong, engines or dir(owner), n=1):
        return f"; did you mean {close[0]!r}?"
    return f"; its engine is {engines[0]!r}" if engines else ""


def _described(value: object) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"
