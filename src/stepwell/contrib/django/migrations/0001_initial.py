"""Stepwell's own migration 0001."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

from stepwell.contrib.django.operations import stepwell_schema


class Migration(migrations.Migration):
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[Operation]] = [stepwell_schema(1)]
