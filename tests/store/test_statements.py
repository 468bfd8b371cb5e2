"""Every statement: one file, one duty, one caller, and Postgres prepares it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import asyncpg
import pytest

import stepwell._store
from stepwell._store.connection.pool import CLIENT, WORKER
from stepwell._store.connection.sql_files import _cte, statement

STORE = Path(stepwell._store.__file__).parent
FIRST = STORE / "migrations/0001_initial.sql"
FILES = sorted(str(path.relative_to(STORE / "sql").with_suffix("")) for path in (STORE / "sql").rglob("*.sql"))
NAMES = [name for name in FILES if "/_" not in name]
PARTS = [name for name in FILES if "/_" in name]  # CTEs only, which statements take by name
CALL = re.compile(r"""fetch\(\s*"([a-z_]+/[a-z_]+)""" + '"')
SESSIONS = {"client": CLIENT, "worker": WORKER}


def callers() -> list[str]:
    """The statement of each call in the store's modules."""
    return [name for path in STORE.rglob("*.py") for name in CALL.findall(path.read_text())]


def head(name: str) -> str:
    """The comment that a file begins with."""
    lines = statement(name).splitlines()
    count = next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))
    return "\n".join(line.removeprefix("--").strip() for line in lines[:count])


def body(name: str) -> str:
    """The statement without its comments."""
    return "\n".join(line.partition("--")[0] for line in statement(name).splitlines()).strip()


@pytest.mark.parametrize("session", SESSIONS)
async def test_postgres_prepares_every_statement(url: str, session: str) -> None:
    connection = await asyncpg.connect(url, server_settings=SESSIONS[session])
    refused = {}

    for name in NAMES:
        try:
            await connection.prepare(statement(name))
        except asyncpg.PostgresError as error:
            refused[name] = str(error)

    assert refused == {}
    await connection.close()


@pytest.mark.parametrize("name", FILES)
def test_a_statement_states_its_duty_and_its_locks(name: str) -> None:
    duty = head(name).split(". ")[0]

    assert len(duty.split()) >= 3, "the first sentence says what the statement does"
    assert duty[0].isupper()
    assert "Locks: " in head(name), "say which locks it takes, in which order, or none"


@pytest.mark.parametrize("name", NAMES)
def test_a_file_holds_one_statement(name: str) -> None:
    assert ";" not in body(name)
    assert re.match(r"(with|select|insert|update|delete)\b", body(name))
    assert max(map(len, statement(name).splitlines())) <= 120


@pytest.mark.parametrize("name", NAMES)
def test_a_statement_has_one_caller(name: str) -> None:
    assert callers().count(name) == 1


@pytest.mark.parametrize("name", PARTS)
def test_a_file_of_ctes_is_used_by_a_statement(name: str) -> None:
    texts = [(STORE / "sql" / f"{using}.sql").read_text("utf-8") for using in NAMES]

    assert [text for text in texts if f" of {name}}}" in text]


def test_an_unknown_cte_of_another_file_is_refused() -> None:
    with pytest.raises(LookupError, match="has no CTE 'judge'"):
        _cte("judge", "instances/claim")


def test_every_call_has_its_file() -> None:
    assert set(callers()) <= set(NAMES)


def test_an_end_is_counted_alike_with_its_commit_and_after_it() -> None:
    names = ("children/join", "instances/commit_fast")
    after, with_commit = (re.findall(r"counted as \((.*?)\n\)", body(name), re.DOTALL) for name in names)

    assert after
    assert after == with_commit


@pytest.mark.parametrize("name", FILES)
def test_a_statement_names_only_indexes_that_exist(name: str) -> None:
    schema = "".join(path.read_text() for path in (STORE / "migrations").glob("*.sql"))

    named = set(re.findall(r"\b(?:instances|workers|machines)_[a-z_]+\b", head(name)))

    assert all(f"index {index} on" in schema for index in named)


@pytest.mark.parametrize("name", FILES)
def test_only_lock_that_lets_foreign_keys_pass_is_taken(name: str) -> None:
    locking = re.findall(r"\bfor (?:no key )?(?:update|share)\b(?! set)", body(name))

    assert set(locking) <= {"for no key update"}


@pytest.mark.parametrize("path", [*(STORE / "sql").rglob("*.sql"), *(STORE / "migrations").glob("*.sql")], ids=str)
def test_sql_in_files_names_the_schema_by_its_placeholder(path: Path) -> None:
    text = path.read_text("utf-8")

    assert re.findall(r"\bstepwell[._]|'stepwell\b|\bschema stepwell\b", text) == []
    assert set(re.findall(r"\{[a-z]+\}", text)) <= {"{schema}", "{application}"}


def test_no_python_module_spells_the_schema_in_sql() -> None:
    tables = "|".join(re.findall(r"create table \{schema\}\.(\w+)", FIRST.read_text("utf-8")))
    spelt = re.compile(rf"(from|into|update|table) stepwell\.({tables})\b")
    texts = [
        (path.name, node.value)
        for path in STORE.parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]

    assert len(tables.split("|")) > 10
    assert [name for name, text in texts if spelt.search(text)] == []
