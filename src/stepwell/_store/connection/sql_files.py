"""Loads the SQL files, by noun and verb (`statement("instances/claim")`), and inserts the schema's name.

In a statement, `{ctes sized, left_open of await_units/close}` inserts these CTEs of another file. A file with a leading
underscore in its name contains only CTEs for other statements.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from stepwell.config import SCHEMA

_FOLDER = Path(__file__).parents[1] / "sql"  # importlib.resources would add ten percent to the import time
_SHARED = re.compile(r"\{ctes ([a-z_, ]+) of ([a-z_/]+)\}")
_CTE = r"^(?:with (?:recursive )?|\), )({name}\b.*?)\n\)"  # CTEs start and end in the first column


@cache
def statement(name: str, schema: str = SCHEMA) -> str:
    """The text of `sql/<name>.sql` for this schema."""
    return rendered(_SHARED.sub(_ctes, _read(name)), schema)


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.sql").read_text("utf-8")


def _ctes(shared: re.Match[str]) -> str:
    """The text of CTEs of another file."""
    return "\n), ".join(_cte(name, shared[2]) for name in shared[1].split(", "))


def _cte(name: str, file: str) -> str:
    found = re.search(_CTE.format(name=name), _read(file), re.MULTILINE | re.DOTALL)
    if found is None:
        raise LookupError(f"sql/{file}.sql has no CTE {name!r}")
    return found[1]


def rendered(sql: str, schema: str) -> str:
    """Replace `{schema}` with the schema, and `{application}` with the application name of its connections.

    Neither placeholder is valid SQL otherwise. The names are plain identifiers: they need no quoting, even in literals.
    """
    return sql.replace("{schema}", schema).replace("{application}", application(schema))


def application(schema: str) -> str:
    """The application name of an engine's connections in `pg_stat_activity`, without their purpose."""
    return SCHEMA if schema == SCHEMA else f"{SCHEMA}/{schema}"
