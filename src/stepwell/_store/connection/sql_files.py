"""The SQL files, by noun and verb: `statement("instances/claim")`; and how the schema's name gets into all SQL.

In a statement `{ctes sized, left_open of await_units/close}` stands for these CTEs of another file. A file with an
underscore before its name has only CTEs, for other statements.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from stepwell.config import SCHEMA

_FOLDER = Path(__file__).parents[1] / "sql"  # importlib.resources would be a tenth of what importing Stepwell takes
_SHARED = re.compile(r"\{ctes ([a-z_, ]+) of ([a-z_/]+)\}")
_CTE = r"^(?:with (?:recursive )?|\), )({name}\b.*?)\n\)"  # CTEs begin and end at the first column


@cache
def statement(name: str, schema: str = SCHEMA) -> str:
    """The text of `sql/<name>.sql`, for that schema."""
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
    """SQL in which `{schema}` stands for the schema, and `{application}` for what its connections are called.

    Postgres takes neither for a name, and both are plain identifiers: they need no quotes, also within a literal.
    """
    return sql.replace("{schema}", schema).replace("{application}", application(schema))


def application(schema: str) -> str:
    """What connections of an engine are called in `pg_stat_activity`, without what they are for."""
    return SCHEMA if schema == SCHEMA else f"{SCHEMA}/{schema}"
