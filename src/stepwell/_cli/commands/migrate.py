"""`stepwell migrate`: bring the schema up to date, check it, or print its SQL."""

from __future__ import annotations

import asyncio
import os
import sys
from argparse import ArgumentParser, Namespace

from stepwell._cli.app import add_engine_flags, chosen_engine, chosen_schema
from stepwell._cli.exit_codes import NOT_SO, OK
from stepwell._cli.output import to_json
from stepwell._client.admin import schema
from stepwell.config import load_settings
from stepwell.engine import Engine
from stepwell.errors import DatabaseUnreachable, SchemaOutdated

EXAMPLES = """\
examples:
  stepwell migrate --app shop.app:engine                 apply missing migrations, register the app's machines
  stepwell migrate --check || echo "run stepwell migrate first"

--check exits with 0 if this Stepwell may run on the schema, 1 if it is outdated, 3 if it is too new."""


def configure(parser: ArgumentParser) -> None:
    add_engine_flags(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="change nothing; report by the exit code")
    what.add_argument(
        "--sql", action="store_true",
        help="print the SQL instead: from the version of the named database if it answers, else for an empty one",
    )  # fmt: skip
    parser.add_argument(
        "--client-role", metavar="NAME",
        help="the role that may call the SQL functions; by default the present one, or the schema's name, _client_ and "
        "the name of the database",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object (has no effect on --sql)")
    parser.epilog = EXAMPLES


def run(args: Namespace) -> int:
    if args.sql:
        version = asyncio.run(_version_for_sql(args))
        sys.stdout.write(schema.sql(version, args.client_role, _schema_of(args)))
        return OK
    engine = chosen_engine(args)
    return asyncio.run(_check(engine, args.json) if args.check else _apply(engine, args.json, args.client_role))


def _schema_of(args: Namespace) -> str:
    return chosen_engine(args).settings.schema if args.app is not None else load_settings(chosen_schema(args)).schema


async def _apply(engine: Engine, as_json: bool, client_role: str | None) -> int:
    applied = await engine.migrate(client_role=client_role)
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
    if as_json:
        print(to_json({"current": True, "version": version, "missing": []}))
    elif schema.is_newer(version):
        print(f"the schema is newer, at version {version}; this Stepwell may run on it")
    else:
        print(f"the schema is up to date, at version {version}")
    return OK


async def _version_for_sql(args: Namespace) -> int:
    """The version of the named database; 0 if none was named, or if it does not answer."""
    if args.app is None and args.database_url is None and not os.environ.get("STEPWELL_DATABASE_URL"):
        return 0
    try:
        return await chosen_engine(args).check()
    except SchemaOutdated as error:
        return error.found
    except DatabaseUnreachable as error:
        print(f"stepwell: {error}; this is the SQL for an empty database", file=sys.stderr)
        return 0
