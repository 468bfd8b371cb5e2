"""The tasks that this process knows: a row can only name one of them, and cause no import."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from stepwell.contrib.django.discovery import import_tasks
from stepwell.contrib.django.tasks.api import Task


def known_task(path: str) -> Task[..., Any] | None:
    """The task of this path, if its module is imported; the project's tasks are imported when one is missing."""
    found = _look_up(path)
    if found is None:
        import_tasks()
        found = _look_up(path)
    return found


def _look_up(path: str) -> Task[..., Any] | None:
    name, _, attribute = path.rpartition(".")
    module = sys.modules.get(name)
    found = vars(module).get(attribute) if isinstance(module, ModuleType) else None
    return found if isinstance(found, Task) and found.module_path == path else None
