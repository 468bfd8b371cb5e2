"""The setting STEPWELL, the machines of a project, and its engine."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from types import ModuleType
from typing import Any

import django
import pytest
from django.apps import apps
from django.core.checks import run_checks
from django.test import override_settings

from stepwell import ConcurrencyLimit, DefinitionError, Engine, SettingError
from stepwell.contrib.django import engine, make_engine
from stepwell.contrib.django.project import ProjectEngine
from stepwell.transports import Manual
from tests.surfaces.contrib.django.conftest import environment

pytestmark = pytest.mark.usefixtures("project")


def machines_of(made: Engine) -> set[str]:
    return {definition.name for definition in made._registry.all()}


def test_machines_are_found_in_the_setting_and_in_the_apps() -> None:
    found = machines_of(make_engine())

    assert {"post_parcel", "Fulfil", "look"} <= found


def test_a_machine_that_is_named_and_found_counts_once() -> None:
    with override_settings(STEPWELL={"MACHINES": ["bookshop.machines.Fulfil"]}):
        assert "Fulfil" in machines_of(make_engine())


def test_settings_of_the_engine_are_written_in_upper_case() -> None:
    with override_settings(STEPWELL={"LEASE": timedelta(seconds=90), "QUEUES": {"mail": 3}}):
        made = make_engine()

    assert (made.settings.lease, made.settings.queues) == (timedelta(seconds=90), {"mail": 3})


def test_resources_are_named_by_their_path() -> None:
    with override_settings(STEPWELL={"RESOURCES": "bookshop.models.Order"}):
        from bookshop.models import Order  # noqa: PLC0415 - importable once the project is set up

        assert make_engine()._resources is Order


def test_limits_are_those_of_the_engine() -> None:
    with override_settings(STEPWELL={"LIMITS": [ConcurrencyLimit("stripe", 3)]}):
        assert make_engine()._registry.limits.all() == [ConcurrencyLimit("stripe", 3)]


def test_transports_and_keys_are_those_of_the_engine() -> None:
    with override_settings(STEPWELL={"TRANSPORTS": [Manual("legal")], "TOKEN_KEYS": {"one": "s" * 32}}):
        made = make_engine()

    assert (sorted(made._transports), made._token_keys.is_empty) == (["legal", "manual"], False)


def test_a_url_of_its_own_goes_before_the_database_of_django() -> None:
    with override_settings(STEPWELL={"URL": "postgresql://elsewhere/shop"}):
        assert make_engine()._dsn == "postgresql://elsewhere/shop"


@pytest.mark.parametrize(("given", "named"), [
    ({"LEESE": 5}, "STEPWELL['LEESE']"),
    ({"queues": {"default": 1}}, "STEPWELL['queues']"),
    ({"LEASE": 90}, "STEPWELL['LEASE']"),
    ({"QUEUES": {"default": 0}}, "STEPWELL['QUEUES']"),
    ({"MACHINES": "bookshop.machines.Fulfil"}, "STEPWELL['MACHINES']"),
    ({"MACHINES": ["bookshop.machines.Fulfill"]}, "STEPWELL['MACHINES'][0]"),
    ({"MACHINES": ["bookshop.models.Order"]}, "STEPWELL['MACHINES'][0]"),
    ({"RESOURCES": "bookshop.nothing"}, "STEPWELL['RESOURCES']"),
    ({"DATABASE": "notes"}, "STEPWELL['DATABASE']"),
    ({"DATABASE": "nowhere"}, "STEPWELL['DATABASE']"),
    ({"DATABASE": 5}, "STEPWELL['DATABASE']"),
    ({"URL": 5}, "STEPWELL['URL']"),
    ({"CLIENT_ROLE": "public"}, "STEPWELL['CLIENT_ROLE']"),
    (["QUEUES"], "STEPWELL"),
])  # fmt: skip
def test_a_bad_setting_is_named_with_its_key(given: Any, named: str) -> None:
    with override_settings(STEPWELL=given), pytest.raises(SettingError) as caught:
        make_engine()

    assert caught.value.setting == named


def test_a_database_that_is_no_postgres_is_refused_with_a_reason() -> None:
    with override_settings(STEPWELL={"DATABASE": "notes"}), pytest.raises(SettingError, match="is sqlite, and"):
        make_engine()


def test_an_error_suggests_a_setting_of_a_similar_name() -> None:
    with override_settings(STEPWELL={"QUEUE": {}}), pytest.raises(SettingError, match="did you mean 'QUEUES'"):
        make_engine()


def test_a_bad_setting_is_an_error_of_manage_check() -> None:
    with override_settings(STEPWELL={"LEESE": 5}):
        [told] = [message.msg for message in run_checks() if message.id == "stepwell.E001"]

    assert "STEPWELL['LEESE']" in told


def test_a_project_that_is_in_order_has_nothing_to_check() -> None:
    assert run_checks() == []


def test_the_engine_of_the_project_reads_the_settings_when_it_is_first_used() -> None:
    made = ProjectEngine()

    with override_settings(STEPWELL={"QUEUES": {"late": 3}}):
        assert made.settings.queues == {"late": 3}

    assert made.settings.queues == {"late": 3}
    assert isinstance(engine, Engine)


def test_an_unknown_attribute_of_the_engine_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'strat'"):
        engine.strat  # type: ignore[attr-defined]  # noqa: B018 - the point of the test


def test_bad_settings_are_read_again_once_they_are_fixed() -> None:
    made = ProjectEngine()

    with override_settings(STEPWELL={"MACHINES": ["bookshop.nothing"]}), pytest.raises(SettingError):
        made.settings  # noqa: B018 - used for the first time
    with override_settings(STEPWELL={"MACHINES": ["bookshop.machines.Fulfil", "bookshop.machines.Fulfil"]}):
        assert made.settings.queues == {"default": 50}


def test_the_blocking_engine_belongs_to_the_engine_that_was_made() -> None:
    made = ProjectEngine()

    assert made._twin()._registry is made._registry


def test_an_engine_used_while_it_is_made_raises_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    made = ProjectEngine()
    module = ModuleType("bookshop.early")
    module.__getattr__ = lambda name: made.settings  # type: ignore[method-assign]  # as code at its top would
    monkeypatch.setitem(sys.modules, "bookshop.early", module)

    named = override_settings(STEPWELL={"MACHINES": ["bookshop.early.Early"]})
    with named, pytest.raises(DefinitionError, match="while that module is imported"):
        made.settings  # noqa: B018 - used for the first time


def test_an_engine_used_while_apps_are_loaded_raises_an_error_that_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apps, "models_ready", False)
    monkeypatch.setattr(apps, "loading", True)

    with pytest.raises(DefinitionError, match="while Django loads its apps"):
        make_engine()


def test_an_app_may_use_the_engine_when_it_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """In AppConfig.ready() all models are loaded, and Django as a whole is not ready yet."""
    monkeypatch.setattr(apps, "ready", False)

    assert "Fulfil" in machines_of(make_engine())


def test_two_machines_of_one_name_are_an_error_that_checks_show() -> None:
    from bookshop.posting import post_parcel  # noqa: PLC0415 - importable once the project is set up

    twin = type(post_parcel)(post_parcel.function)
    with override_settings(STEPWELL={"MACHINES": [post_parcel, twin]}):
        with pytest.raises(DefinitionError, match="two machines are called 'post_parcel'"):
            make_engine()
        assert "stepwell.E001" in [message.id for message in run_checks()]


@pytest.mark.parametrize(("code", "told"), [
    pytest.param(
        "import stepwell.contrib.django; stepwell.contrib.django.engine.settings",
        "stepwell.errors.SettingError: setting 'DJANGO_SETTINGS_MODULE': Django cannot be set up: ",
        id="no settings",
    ),
    pytest.param(
        "import sys; sys.modules['django_tasks'] = None; import stepwell.contrib.django.tasks",
        "stepwell.errors.MissingExtra: stepwell.contrib.django.tasks before Django 6 needs a package that is not "
        "installed; run: pip install 'stepwell[django-tasks]'",
        id="no backport", marks=pytest.mark.skipif(django.VERSION >= (6,), reason="Django has tasks itself"),
    ),
])  # fmt: skip
def test_an_error_names_the_missing_setting_or_app(project: str, code: str, told: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment(project), capture_output=True, text=True, check=False
    )

    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(told)


def test_without_django_the_import_error_says_what_to_install(project: str) -> None:
    code = "import sys; sys.modules['django'] = None; import stepwell.contrib.django"

    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment(project), capture_output=True, text=True, check=False
    )

    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        "stepwell.errors.MissingExtra: stepwell.contrib.django needs a package that is not installed; "
        "run: pip install 'stepwell[django]'"
    )
