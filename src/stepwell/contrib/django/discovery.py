"""Finds a project's machines: those of the setting, and those in the module `machines` of each installed app; and its
tasks, which are in the module `tasks` of each.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from django.apps import apps
from django.conf import settings
from django.utils.module_loading import import_string, module_has_submodule

from stepwell.errors import SettingError
from stepwell.job import Job
from stepwell.machine import Machine

log = logging.getLogger("stepwell")

MODULE = "machines"
TASKS = "tasks"
OWN = "stepwell.contrib.django"


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
            raise SettingError(where, f"{path!r} cannot be imported: {error}") from error
        if not _is_machine(machine):
            raise SettingError(where, f"{path!r} is neither a Machine class nor a job")
        yield machine


def import_tasks() -> None:
    """Import the module `tasks` of each installed app: the task of a row is looked up among imported ones."""
    for name in _submodules(TASKS):
        try:
            import_module(name)
        except ImportError as error:  # the app may belong to others, for a queue that is not served here
            log.warning("django: cannot import %s, its tasks cannot run: %s", name, error)


def _in_apps() -> Iterator[Any]:
    """The machines and jobs in the module `machines` of each app, its own and those it imports."""
    for name in _submodules(MODULE):
        yield from (value for value in vars(import_module(name)).values() if _is_machine(value))


def _submodules(name: str) -> Iterator[str]:
    """The module of that name of each installed app that has one, except our own app's."""
    for app in apps.get_app_configs():
        if app.module is not None and app.name != OWN and module_has_submodule(app.module, name):
            yield f"{app.name}.{name}"


def _of_tasks() -> Iterator[Any]:
    """The machine that runs Django's tasks, if a backend of `TASKS` is ours."""
    backends = [entry.get("BACKEND", "") for entry in getattr(settings, "TASKS", {}).values()]
    if any(_is_ours(backend) for backend in backends):
        import_tasks()
        yield import_string(f"{OWN}.tasks.machine.DjangoTask")


def _is_ours(path: str) -> bool:
    if path.startswith(f"{OWN}."):
        return True
    backend = import_string(path)
    return any(kind.__module__.startswith(f"{OWN}.") for kind in backend.__mro__)


def _is_machine(value: object) -> bool:
    return isinstance(value, Job) or (inspect.isclass(value) and issubclass(value, Machine) and value is not Machine)
