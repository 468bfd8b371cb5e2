"""The SQL files, by noun and verb: `statement("instances/claim")`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

_FOLDER = Path(__file__).parent / "sql"  # importlib.resources would be a tenth of what importing Stepwell takes


@cache
def statement(name: str) -> str:
    """The text of `sql/<name>.sql`."""
    return (_FOLDER / f"{name}.sql").read_text("utf-8")
