"""`requirements/dev.lock`: what `make venv` installs, pinned and hashed, for any registry."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent.parent
LOCK = (ROOT / "requirements" / "dev.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
PYTHONS = ("3.11", "3.12", "3.13")


def entries() -> list[str]:
    """The lock's requirements, each with its hashes on one line."""
    lines = [line for line in LOCK.splitlines() if not line.lstrip().startswith("#")]
    return [line.strip() for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line.strip()]


def pinned() -> list[Requirement]:
    return [Requirement(HASH.sub("", entry).strip()) for entry in entries()]


def pin(requirement: Requirement) -> str:
    [version] = requirement.specifier
    return version.version


def wanted(extras: list[str]) -> list[Requirement]:
    """What the extras of pyproject ask for, those that they name themselves included."""
    found = []
    for extra in extras:
        for text in PROJECT["optional-dependencies"][extra]:
            requirement = Requirement(text)
            if requirement.name == PROJECT["name"]:
                found += wanted(sorted(requirement.extras))
            else:
                found.append(requirement)
    return found


def test_dev_lock_names_no_registry() -> None:
    assert "://" not in LOCK
    assert [entry for entry in entries() if entry.startswith("-") or " @ " in entry] == []


def test_each_requirement_of_the_dev_lock_has_a_version_and_a_hash() -> None:
    assert [entry for entry in entries() if not HASH.search(entry)] == []
    assert [str(one) for one in pinned() if [part.operator for part in one.specifier] != ["=="]] == []


@pytest.mark.parametrize("python", PYTHONS)
def test_dev_lock_has_all_development_dependencies(python: str) -> None:
    environment = {"python_version": python, "python_full_version": f"{python}.0"}

    def applies(one: Requirement) -> bool:
        return one.marker is None or one.marker.evaluate(environment)

    declared = [Requirement(text) for text in PROJECT["dependencies"]] + wanted(["dev"])
    versions = {canonicalize_name(one.name): pin(one) for one in pinned() if applies(one)}

    absent = [
        str(one)
        for one in declared
        if applies(one) and not one.specifier.contains(versions.get(canonicalize_name(one.name), "0"))
    ]

    assert absent == [], "run `make lock`"


def test_build_needs_nothing_that_the_dev_lock_lacks() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names = {canonicalize_name(one.name) for one in pinned()}

    assert {canonicalize_name(Requirement(text).name) for text in project["build-system"]["requires"]} <= names
