"""What the migrations of this app do: run Stepwell's own, over Django's connection, in Django's transaction."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations import RunPython

from stepwell import schema
from stepwell.contrib.django.project import database_alias


def stepwell_schema(version: int) -> RunPython:
    """Bring the schema `stepwell` to that version; one that is further already stays as it is.

    There is no way back: unapplying leaves the schema alone.
    """
    return RunPython(partial(_migrate, version=version), RunPython.noop)


def _migrate(_: Any, editor: BaseDatabaseSchemaEditor, *, version: int) -> None:
    connection = editor.connection
    if connection.alias != database_alias():
        return  # every app's migrations run in every database; the schema lives in one

    def send(sql: str) -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []

    schema.migrate_over(send, version)
