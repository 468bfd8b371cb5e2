"""The reference pages are complete: what the code has, they have."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, fields
from datetime import timedelta

import stepwell
from stepwell import StepwellError, errors, pipelines
from stepwell.config import Settings
from tests.quality.docs.pages import ROOT, prose, rows

DOCS = ROOT / "docs"


def _shown(value: object) -> str:
    """A default as the table writes it."""
    if value is None or value == {}:
        return "none"
    match value:
        case timedelta(days=1):
            return "1 day"
        case timedelta():
            return f"{value.total_seconds():g} s"
        case str():
            return value or "empty"
        case dict():
            return "`" + ", ".join(f"{queue}={slots}" for queue, slots in value.items()) + "`"
        case int():
            return f"{value:,}"
    raise AssertionError(f"say here how {value!r} is shown")


def _errors() -> list[str]:
    return [name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, StepwellError)]


def test_the_table_of_settings_is_complete() -> None:
    expected = []
    for setting in fields(Settings):
        default = setting.default if setting.default_factory is MISSING else setting.default_factory()
        expected.append([f"`{setting.name}`", _shown(default), f"`STEPWELL_{setting.name.upper()}`"])

    assert [row[:3] for row in rows(DOCS / "guides" / "workers.md", "Every setting")] == expected


def test_the_page_of_errors_has_one_row_per_public_error() -> None:
    listed = re.findall(r"^- `(\w+)`", prose(DOCS / "reference" / "errors.md"), re.MULTILINE)

    assert sorted(listed) == sorted(_errors())


def test_every_public_error_can_be_imported_from_the_package() -> None:
    assert [name for name in _errors() if name not in stepwell.__all__] == []


def test_the_page_of_the_api_has_one_row_per_public_name() -> None:
    listed = re.findall(r"^- `(\w+)`", prose(DOCS / "reference" / "api.md"), re.MULTILINE)

    assert sorted(listed) == sorted(stepwell.__all__)


def test_the_page_of_pipelines_has_one_row_per_public_name() -> None:
    listed = re.findall(r"^- `(\w+)`", prose(DOCS / "reference" / "pipelines.md"), re.MULTILINE)

    assert sorted(listed) == sorted(pipelines.__all__)
