"""`stepwell migrate`: bring the schema up to date, check it, or print its SQL."""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import ArgumentParser, Namespace

from stepwell import schema
from stepwell._cli.app import add_engine_flags, chosen_engine
from stepwell._cli.exits import NOT_SO, OK
from stepwell._cli.output import to_json
from stepwell.engine import Engine
from stepwell.errors import DatabaseUnreachable, SchemaOutdated

EXAMPLES = """\
examples:
  stepwell migrate --app shop.app:engine                 apply what is missing, make the app's machines known
  stepwell migrate --check || echo "run stepwell migrate first"

--check exits with 0 if the schema is current, 1 if it is outdated, 3 if it is newer than this Stepwell."""


def configure(parser: ArgumentParser) -> None:
    add_engine_flags(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="change nothing; tell by the exit code")
    what.add_argument(
        "--sql", action="store_true",
        help="print the SQL instead: from the database's version on if one was named and answers, else from nothing",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="answer with one JSON object (has no effect on --sql)")
    parser.epilog = EXAMPLES


def run(args: Namespace) -> int:
    if args.sql:
        sys.stdout.write(schema.sql(asyncio.run(_version_for_sql(args))))
        return OK
    engine = chosen_engine(args)
    return asyncio.run(_check(engine, args.json) if args.check else _apply(engine, args.json))


async def _apply(engine: Engine, as_json: bool) -> int:
    applied = await engine.migrate()
    if as_json:
        print(to_json({"applied": applied}))
    else:
        for name in applied:
            print(f"applied {name}")
        print("the schema is up to date" if applied else "the schema was up to date already")
    return OK


async def _check(engine: Engine, as_json: bool) -> int:
    try:
        version = await engine.check()
    except SchemaOutdated as error:
        missing = schema.missing(error.found)
        if as_json:
            print(to_json({"current": False, "version": error.found, "missing": missing}))
        else:
            print(f"{error}\nmissing: {', '.join(missing)}")
        return NOT_SO
    print(to_json({"current": True, "version": version, "missing": []}) if as_json
          else f"the schema is up to date, at version {version}")
    return OK


async def _version_for_sql(args: Namespace) -> int:
    """The version of the database that was named; 0 if none was, or if it does not answer."""
    if args.app is None and args.database_url is None and not os.environ.get("STEPWELL_DATABASE_URL"):
        return 0
    try:
        return await chosen_engine(args).check()
    except SchemaOutdated as error:
        return error.found
    except DatabaseUnreachable as error:
        print(f"stepwell: {error}; this is the SQL for an empty database", file=sys.stderr)
        return 0
