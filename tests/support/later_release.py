"""Stepwell as a later release has it: with one more migration."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from stepwell._store import migrate

MORE = "-- Compatible: {}\n-- What a later release adds.\nalter table stepwell.instances add column more integer;\n"


@contextmanager
def later_release(*, compatible: bool = True) -> Iterator[None]:
    """Let this code know a migration 2, which locks the table of instances and adds a column to it."""
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        folder = Path(directory) / "migrations"
        shutil.copytree(migrate._FOLDER, folder)
        (folder / "0002_more.sql").write_text(MORE.format("yes" if compatible else "no"), "utf-8")
        patch.setattr(migrate, "_FOLDER", folder)
        migrate.migrations.cache_clear()
        try:
            yield
        finally:
            patch.undo()
            migrate.migrations.cache_clear()
