"""The package structure: direction of imports, the driver, sizes of modules, contents of the package, tests' names."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

import stepwell
from stepwell.testing import POINTS

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
SOURCE = Path(stepwell.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
PURE = [path for path in MODULES if "_core" in path.parts or path.name in ("machine.py", "outcomes.py")]
IMPORT = re.compile(r"^ *(?:import (\w+)|from (\w+)[\w.]* import )", re.MULTILINE)
TEST = re.compile(r"^ *(?:async )?def (test_\w+)\(", re.MULTILINE)
LONGEST = 400
LONGER = {
    "errors.py": 500,  # one list, with its tree on top: it grows with the library, and is read by its tree
}
LONGEST_TEST_NAME = 72
UNDERSCORE = re.compile(r"^ *(?:from stepwell\._|import stepwell\._|from stepwell import _)", re.MULTILINE)
BEHIND_THE_API = {  # tests of behaviour that look behind the public API; none may be added
    "features/engine": "test_hooks test_schemas",
    "features/instances": "test_start",
    "features/interactions": (
        "looks test_complete_fast test_dispatcher test_each test_interaction_cache test_reconciler "
        "test_schema_problem test_stress test_time test_tokens"
    ),
    "features/limits": "test_queues test_rates",
    "features/operators": "test_restart",
    "features/pipelines": (
        "test_check test_items test_long_segments test_memory test_moving test_projecting test_reconciling "
        "test_threads"
    ),
    "features/queues": "test_notifications",
    "features/transactional_steps": "test_connections",
    "surfaces/cli": "processes test_errors test_migrate",
    "surfaces/contrib/django": "test_command test_connections test_migrations",
    "surfaces/sql_and_drivers": "test_bad_connections test_client_role test_role test_sql_bounds test_unusual_callers",
    "surfaces/sync": "test_calls test_names test_processes",
    "surfaces/testing_kit": "test_databases",
    "surfaces/web": "test_access test_decoding test_looking test_worst_bodies",
}


def name(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def imported(path: Path) -> list[str]:
    """The top-level packages that a module imports, anywhere in it.

    By its text: Python 3.11 may fail to parse while another thread, left by some test, formats a traceback.
    """
    return [first or second for first, second in IMPORT.findall(path.read_text())]


def test_imports_point_down() -> None:
    linter = Path(sys.executable).parent / "lint-imports"

    ended = subprocess.run([linter], cwd=ROOT, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_only_the_store_imports_the_driver() -> None:
    knowing = {name(path) for path in MODULES if "asyncpg" in imported(path)}

    assert knowing
    assert all(module.startswith("_store/") for module in knowing)


@pytest.mark.parametrize("path", PURE, ids=name)
def test_a_pure_module_neither_waits_nor_reads_the_clock_nor_logs(path: Path) -> None:
    assert not set(imported(path)) & {"asyncio", "time", "logging", "threading", "asyncpg"}


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_states_its_duty_and_stays_short(path: Path) -> None:
    text = path.read_text()

    assert not text or text.startswith('"""'), "the first line is a docstring that says what the module is for"
    assert len(text.splitlines()) <= LONGER.get(name(path), LONGEST)


def test_every_probe_point_can_be_armed_by_tests() -> None:
    reached = {point for path in MODULES for point in re.findall(r'probes\.reach\("([\w.]+)"', path.read_text())}

    assert reached == set(POINTS)


def test_import_linter_covers_every_package() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = config["tool"]["importlinter"]["contracts"][0]["layers"]
    layered = {part.strip() for layer in layers for part in layer.replace(":", "|").split("|")}

    parts = [path for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    top = {f"stepwell.{path.stem}" for path in parts}

    assert top - layered <= {"stepwell.__init__", "stepwell.__main__"}


def test_the_package_carries_every_sql_file() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    on_disk = {path.relative_to(SOURCE / "_store") for path in (SOURCE / "_store").rglob("*.sql")}

    found = {path for path in on_disk if files("stepwell._store").joinpath(*path.parts).is_file()}

    assert found == on_disk
    assert config["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/stepwell", "src/stepwell_pytest"]


def test_the_wheel_carries_all_files_that_are_not_python(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    [wheel] = tmp_path.glob("*.whl")

    listed = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", wheel], capture_output=True, text=True, check=True
    ).stdout

    others = [*SOURCE.rglob("*.sql"), *SOURCE.rglob("*.json"), SOURCE / "py.typed"]
    kept = {path.relative_to(SOURCE.parent).as_posix() for path in others}
    assert "stepwell/transports/broker/schemas/answer.json" in kept
    assert {path for path in kept if path not in listed} == set()


def test_a_test_name_has_at_most_72_characters() -> None:
    names = [found for path in TESTS.rglob("*.py") for found in TEST.findall(path.read_text())]

    assert len(names) > 1_000
    assert [test for test in names if len(test) > LONGEST_TEST_NAME] == []


def test_tests_of_behaviour_use_the_public_api() -> None:
    """But for those that did not when this was written; the list may only become shorter."""
    behaviour = [*(TESTS / "features").rglob("*.py"), *(TESTS / "surfaces").rglob("*.py")]
    behind = {str(path.relative_to(TESTS).with_suffix("")) for path in behaviour if UNDERSCORE.search(path.read_text())}

    known = {f"{folder}/{module}" for folder, modules in BEHIND_THE_API.items() for module in modules.split()}
    assert behind - known == set()


def test_the_package_is_typed() -> None:
    assert files("stepwell").joinpath("py.typed").is_file()
