"""The operations of this app's migrations: they run Stepwell's own, over Django's connection, in its transaction."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations import RunPython

from stepwell._client.admin import schema
from stepwell.contrib.django.project import client_role, database_alias, schema_name


def stepwell_schema(version: int) -> RunPython:
    """Bring the project's schema to that version; a newer one stays as it is.

    It cannot be reversed: unapplying leaves the schema alone.
    """
    return RunPython(partial(_migrate, version=version), RunPython.noop)


def _migrate(_: Any, editor: BaseDatabaseSchemaEditor, *, version: int) -> None:
    connection = editor.connection
    if connection.alias != database_alias():
        return  # every app's migrations run in every database; the schema is in one

    def send(sql: str) -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []

    schema.migrate_over(send, version, client_role(), schema_name())
