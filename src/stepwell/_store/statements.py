"""The SQL files, by noun and verb: `statement("instances/claim")`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files


@cache
def statement(name: str) -> str:
    """The text of `sql/<name>.sql`."""
    return (files("stepwell._store") / "sql" / f"{name}.sql").read_text("utf-8")
