"""A real Django project on a database of its own, made by its own `migrate`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
import pytest
from django.core.management import call_command
from django.db import connections

from stepwell.contrib.django import engine, make_engine
from tests.support.shared_database import empty_database

PROJECT = Path(__file__).parent / "project"
Tasks = Any  # the module of the project's tasks


@pytest.fixture(scope="session")
def project() -> Iterator[str]:
    """Django, set up and migrated in this process; the URL of its database."""
    with empty_database() as url, pytest.MonkeyPatch.context() as path:
        path.syspath_prepend(PROJECT)
        with pytest.MonkeyPatch.context() as patch:  # imported here: a process that another test starts has its own
            patch.setenv("BOOKSHOP_DATABASE_URL", url)
            patch.setenv("DJANGO_SETTINGS_MODULE", "bookshop_settings")
            django.setup()
        call_command("migrate", verbosity=0)
        yield url
        engine.sync.close()
        connections.close_all()


@pytest.fixture
def empty_url() -> Iterator[str]:
    with empty_database() as url:
        yield url


@pytest.fixture(scope="module")
def tasks(project: str) -> Tasks:
    """The module of the project's tasks."""
    from bookshop import tasks  # noqa: PLC0415 - importable once the project is set up

    return tasks


@pytest.fixture(scope="module")
def worker(project: str) -> Iterator[Any]:
    """A worker for the queue `default`."""
    with make_engine().sync as sync, sync.worker({"default": 4}) as worker:
        yield worker


def ended(result: Any) -> Any:
    """Wait for the end of a task, and read its result again."""
    engine.sync.wait(int(result.id), timeout=30)
    result.refresh()
    return result


def environment(url: str, **more: str) -> dict[str, str]:
    """The environment of a process of the project."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "BOOKSHOP_DATABASE_URL": url, "PYTHONPATH": path, **more}
