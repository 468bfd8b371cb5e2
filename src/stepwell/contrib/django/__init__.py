"""The Django app: add `"stepwell.contrib.django"` to INSTALLED_APPS, and the project's engine is `engine` here."""

from __future__ import annotations

from importlib.util import find_spec

from stepwell.errors import MissingExtra

if find_spec("django") is None:
    raise MissingExtra("django", "stepwell.contrib.django")

from stepwell.contrib.django.project import ProjectEngine, make_engine

__all__ = ["engine", "make_engine"]

engine = ProjectEngine()
