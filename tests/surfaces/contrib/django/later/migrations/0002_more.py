"""Stepwell's own migration 0002, of a later release."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations
from django.db.migrations.operations.base import Operation

from stepwell.contrib.django.operations import stepwell_schema


class Migration(migrations.Migration):
    dependencies: ClassVar[list[tuple[str, str]]] = [("stepwell", "0001_initial")]
    operations: ClassVar[list[Operation]] = [stepwell_schema(2)]
