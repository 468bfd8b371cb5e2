"""Finds a project's machines: those of the setting, and those in the module `machines` of each installed app."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from django.apps import apps
from django.conf import settings
from django.utils.module_loading import import_string, module_has_submodule

from stepwell.errors import SettingError
from stepwell.job import Job
from stepwell.machine import Machine

MODULE = "machines"


def discover_machines(named: object) -> list[Any]:
    """All machines and jobs of the project, each once."""
    found = [*_named(named), *_in_apps(), *_of_tasks()]
    return list({id(machine): machine for machine in found}.values())


def _named(paths: object) -> Iterator[Any]:
    """Those of `STEPWELL["MACHINES"]`: dotted paths, or machines themselves."""
    if not isinstance(paths, Iterable) or isinstance(paths, str):
        raise SettingError("STEPWELL['MACHINES']", f"expected a list of dotted paths, got {paths!r}")
    for place, path in enumerate(paths):
        where = f"STEPWELL['MACHINES'][{place}]"
        try:
            machine = import_string(path) if isinstance(path, str) else path
        except ImportError as error:
            raise SettingError(where, f"{path!r} can not be imported: {error}") from error
        if not _is_machine(machine):
            raise SettingError(where, f"{path!r} is neither a Machine class nor a job")
        yield machine


def _in_apps() -> Iterator[Any]:
    """Whatever an app's module `machines` holds, its own and what it imports."""
    for app in apps.get_app_configs():
        if app.module is not None and module_has_submodule(app.module, MODULE):
            module = import_module(f"{app.name}.{MODULE}")
            yield from (value for value in vars(module).values() if _is_machine(value))


def _of_tasks() -> Iterator[Any]:
    """The machine that runs Django's tasks, if a backend of `TASKS` is ours."""
    backends = [entry.get("BACKEND", "") for entry in getattr(settings, "TASKS", {}).values()]
    if any(_is_ours(backend) for backend in backends):
        yield import_string("stepwell.contrib.django.tasks.machine.DjangoTask")


def _is_ours(path: str) -> bool:
    if path.startswith("stepwell.contrib.django."):
        return True
    backend = import_string(path)
    return any(kind.__module__.startswith("stepwell.contrib.django.") for kind in backend.__mro__)


def _is_machine(value: object) -> bool:
    return isinstance(value, Job) or (inspect.isclass(value) and issubclass(value, Machine) and value is not Machine)
