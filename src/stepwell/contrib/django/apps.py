"""The Django app, with its system checks and the work after `migrate`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import CheckMessage, Error, register
from django.db.models.signals import post_migrate

from stepwell.contrib.django.project import database_alias, make_engine
from stepwell.engine import Engine
from stepwell.errors import SchemaOutdated, SchemaTooNew, StepwellError


class StepwellConfig(AppConfig):
    name = "stepwell.contrib.django"
    label = "stepwell"
    verbose_name = "Stepwell"

    def ready(self) -> None:
        register(check_settings)
        post_migrate.connect(_register_machines, sender=self)


def check_settings(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """Report what is wrong with the setting STEPWELL, or with a machine, before anything runs."""
    try:
        make_engine()
    except StepwellError as error:
        return [Error(str(error), id="stepwell.E001")]
    return []


def _register_machines(*, using: str, **kwargs: Any) -> None:
    """Register the machines in the database, as `stepwell migrate` does: inside a transaction, SQL must know them."""
    if "plan" in kwargs and using == database_alias():  # Django's flush sends the same signal, without a plan
        asyncio.run(_register(make_engine()))


async def _register(engine: Engine) -> None:
    try:
        await engine.check()
        await engine.migrate()
    except (SchemaOutdated, SchemaTooNew):
        return  # the schema is of another version than this code: the workers register their machines
