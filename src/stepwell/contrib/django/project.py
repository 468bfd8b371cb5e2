"""The engine of a Django project, made of its settings when it is first used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from threading import RLock
from typing import Any

import django
from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from stepwell._client.admin.schema import check_role
from stepwell.config import Settings, load_settings
from stepwell.contrib.django.connections import clean_connections
from stepwell.contrib.django.databases import database_url
from stepwell.contrib.django.discovery import discover_machines
from stepwell.engine import Engine
from stepwell.errors import DefinitionError, InvalidInput, SettingError

OWN = ("CLIENT_ROLE", "DATABASE", "LIMITS", "MACHINES", "RESOURCES", "TOKEN_KEYS", "TRANSPORTS", "URL")
_reading = RLock()
_readers: list[ProjectEngine] = []  # engines that are being made


class ProjectEngine(Engine):
    """The engine of the settings. They are read when it is first used, so that any module may import it."""

    def __init__(self) -> None:
        """Read nothing yet."""

    def __getattr__(self, name: str) -> Any:
        """Called only for missing attributes: all of them, before the settings were read."""
        if name.startswith("__") or "_registry" in vars(self):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        with _reading:
            if "_registry" not in vars(self):
                self._read_settings()
        return getattr(self, name)

    def _read_settings(self) -> None:
        if self in _readers:
            raise DefinitionError("the engine is used by a module that it needs, while that module is imported; "
                                  "use it in functions there, or in AppConfig.ready()")
        _readers.append(self)
        try:
            url, options = _read()
            super().__init__(url, **options)
        finally:
            _readers.remove(self)

    def _twin(self) -> Engine:
        """A copy of the settings read so far, not a second reading."""
        getattr(self, "_registry")  # noqa: B009 - read now
        return super()._twin()


def make_engine(**changes: Any) -> Engine:
    """A new engine of the project's settings, with some of its keywords changed."""
    url, options = _read()
    return Engine(url, **{**options, **changes})


def database_alias() -> str:
    """The alias in DATABASES of the schema; reads the settings, but no machines."""
    alias = _given().get("DATABASE", "default")
    if not isinstance(alias, str):
        raise SettingError("STEPWELL['DATABASE']", f"expected an alias of DATABASES, got {alias!r}")
    return alias


def client_role() -> str | None:
    """The role that may call the SQL functions, if the settings name one."""
    try:
        return check_role(_given().get("CLIENT_ROLE"))
    except InvalidInput as error:
        raise SettingError("STEPWELL['CLIENT_ROLE']", error.problem) from error


def schema_name() -> str:
    """The schema that the project's engine uses."""
    given = {name: value for name, value in _given().items() if name == "SCHEMA"}
    return load_settings(_engine_settings(given)).schema


def served_queues() -> Mapping[str, int]:
    """The queues that a worker of the project serves by default."""
    return Settings().with_changes(_engine_settings({k: v for k, v in _given().items() if k == "QUEUES"})).queues


def _read() -> tuple[str, dict[str, Any]]:
    """The URL and the keywords of the project's engine."""
    _set_up()
    given = _given()
    options = _engine_settings(given)
    options["machines"] = discover_machines(given.get("MACHINES", []))
    options["limits"] = given.get("LIMITS", [])
    options["transports"] = given.get("TRANSPORTS", [])
    options["token_keys"] = given.get("TOKEN_KEYS")
    options["around_sync_steps"] = clean_connections
    client_role()  # only migrations use it, but it is checked now
    if "RESOURCES" in given:
        options["resources"] = _resources(given["RESOURCES"])
    return _url(given), options


def _set_up() -> None:
    """Set Django up in a process that is not Django's, such as `stepwell worker stepwell.contrib.django:engine`."""
    if apps.models_ready:
        return
    if getattr(apps, "loading", False):
        raise DefinitionError("the engine is used while Django loads its apps; use it in AppConfig.ready(), or later")
    try:
        django.setup()
    except ImproperlyConfigured as error:
        raise SettingError("DJANGO_SETTINGS_MODULE", f"Django cannot be set up: {error}") from error


def _given() -> dict[str, Any]:
    given = getattr(settings, "STEPWELL", {})
    if not isinstance(given, Mapping):
        raise SettingError("STEPWELL", f"expected a dict, got {type(given).__name__}")
    return dict(given)


def _engine_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The engine's own settings, in lower case; an unknown one is refused with a similar name."""
    known = {field.name.upper(): field.name for field in fields(Settings)}
    for name in given:
        if name not in known and name not in OWN:
            unknown = SettingError.unknown(str(name), [*OWN, *known])
            raise SettingError(f"STEPWELL[{name!r}]", unknown.problem)
    found = {known[name]: value for name, value in given.items() if name in known}
    try:
        Settings().with_changes(found)
    except SettingError as error:
        raise SettingError(f"STEPWELL[{error.setting.upper()!r}]", error.problem) from error
    return found


def _url(given: Mapping[str, Any]) -> str:
    url = given.get("URL")
    if url is None:
        return database_url(database_alias())
    if not isinstance(url, str):
        raise SettingError("STEPWELL['URL']", f"expected a string, got {type(url).__name__}")
    return url


def _resources(path: object) -> Any:
    """The value for `Engine(resources=…)`, or the object at its dotted path."""
    if not isinstance(path, str):
        return path
    try:
        return import_string(path)
    except ImportError as error:
        raise SettingError("STEPWELL['RESOURCES']", f"{path!r} cannot be imported: {error}") from error
