"""The SQL files, by noun and verb: `statement("instances/claim")`; and how the schema's name gets into all SQL."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from stepwell.config import SCHEMA

_FOLDER = Path(__file__).parents[1] / "sql"  # importlib.resources would be a tenth of what importing Stepwell takes


@cache
def statement(name: str, schema: str = SCHEMA) -> str:
    """The text of `sql/<name>.sql`, for that schema."""
    return rendered((_FOLDER / f"{name}.sql").read_text("utf-8"), schema)


def rendered(sql: str, schema: str) -> str:
    """SQL in which `{schema}` stands for the schema, and `{application}` for what its connections are called.

    Postgres takes neither for a name, and both are plain identifiers: they need no quotes, also within a literal.
    """
    return sql.replace("{schema}", schema).replace("{application}", application(schema))


def application(schema: str) -> str:
    """What connections of an engine are called in `pg_stat_activity`, without what they are for."""
    return SCHEMA if schema == SCHEMA else f"{SCHEMA}/{schema}"
