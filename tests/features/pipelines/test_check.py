"""`stepwell pipelines`: the problems of files, their drawings, and exit codes for scripts."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from stepwell._cli.main import main
from stepwell.pipelines.yaml.load import read
from tests.features.pipelines.written import TRANSPORT, prices, put
from tests.surfaces.cli.processes import stepwell

WRONG = (("PT5M", "PT0S"), ("function: total", "function: totl"))
Capsys = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A command adds the current directory to what can be imported."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_a_valid_file_is_reported_as_valid(tmp_path: Path, capsys: Capsys) -> None:
    prices(tmp_path)

    code = main(["pipelines", "check", "prices.yaml"])

    assert (code, capsys.readouterr().out) == (0, "prices.yaml: ok: prices, 4 steps, 1 await step\n")


def test_check_prints_all_problems_of_all_files_one_by_one(tmp_path: Path, capsys: Capsys) -> None:
    prices(tmp_path, *WRONG)
    put(tmp_path / "other.yaml", "name: other\nstep: []\n")

    code = main(["pipelines", "check", "prices.yaml", "other.yaml", "nowhere.yaml"])

    assert code == 2
    assert capsys.readouterr().out.splitlines() == [
        "prices.yaml:14: step 'Ask prices': timeout: expected a duration above zero, at most P36500D, got 'PT0S'",
        ("prices.yaml:30: step 'Add up': function: tests.features.pipelines.examples has no 'totl'; "
         "did you mean 'total'?"),
        "other.yaml:1: steps: is missing",
        "other.yaml:2: step: is unknown here; did you mean 'steps'?",
        "nowhere.yaml: cannot be read: No such file or directory",
    ]


def test_the_json_output_is_one_object_per_file(tmp_path: Path, capsys: Capsys) -> None:
    prices(tmp_path)
    put(tmp_path / "other.yaml", "name: other\nsteps: 5\n")

    code = main(["pipelines", "check", "--json", "prices.yaml", "other.yaml"])

    right, wrong = map(json.loads, capsys.readouterr().out.splitlines())
    assert code == 2
    assert right == {"file": "prices.yaml", "ok": True, "pipeline": "prices", "version": 3, "problems": [], "notes": []}
    assert wrong == {
        "file": "other.yaml", "ok": False, "pipeline": None, "version": None,
        "problems": [{"pipeline": "other", "file": "other.yaml", "line": 2, "step": None, "key": "steps",
                      "problem": "expected a list with at least one step, got '5'"}],
        "notes": [],
    }  # fmt: skip


def test_checking_needs_neither_secrets_nor_the_packages_of_transports(tmp_path: Path) -> None:
    prices(tmp_path, (TRANSPORT, "{type: kafka, request: {topic: ask}, response: {topic: say}}"))

    assert main(["pipelines", "check", "prices.yaml"]) == 0


def test_a_pipeline_is_drawn_as_text_or_as_svg(tmp_path: Path, capsys: Capsys) -> None:
    pipeline = read(prices(tmp_path))

    codes = [main(["pipelines", "show", "prices.yaml", *more]) for more in ([], ["--svg", "p.svg"], ["--svg", "-"])]

    drawn = (tmp_path / "p.svg").read_text("utf-8")
    assert codes == [0, 0, 0]
    assert capsys.readouterr().out == f"{pipeline.diagram()}wrote p.svg\n{pipeline.svg()}"
    assert drawn == pipeline.svg()
    assert ET.fromstring(drawn).tag.endswith("svg")  # noqa: S314 - our own


@pytest.mark.parametrize(("words", "says"), [
    (["show", "wrong.yaml"], "2 problems\n  wrong.yaml:14: step 'Ask prices'"),
    (["show", "prices.yaml", "prices.yaml"], "show takes one FILE"),
    (["show", "prices.yaml", "--json"], "--json belongs to check"),
    (["show", "prices.yaml", "--svg", "no/where.svg"], "--svg no/where.svg: No such file or directory"),
    (["check", "prices.yaml", "--svg", "x.svg"], "--svg belongs to: stepwell pipelines show FILE"),
])  # fmt: skip
def test_an_impossible_command_is_refused_with_what_to_do(
    tmp_path: Path, capsys: Capsys, words: list[str], says: str
) -> None:
    put(tmp_path / "wrong.yaml", prices(tmp_path).read_text("utf-8"), *WRONG)

    code = main(["pipelines", *words])

    assert code == 2
    assert capsys.readouterr().err.startswith(f"stepwell: {says}")


async def test_functions_are_imported_from_beside_the_file_and_by_scripts(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("async def double(number: int) -> int:\n    return 2 * number\n")
    text = "name: shop\nmodule: shop\nsteps:\n- {name: a, cardinality: ONE_TO_ONE, function: %s}\n"
    put(tmp_path / "right.yaml", text % "double")
    put(tmp_path / "wrong.yaml", text % "duoble")

    right = await stepwell("pipelines", "check", "right.yaml", cwd=str(tmp_path))
    wrong = await stepwell("pipelines", "check", "wrong.yaml", cwd=str(tmp_path))

    assert (right.code, wrong.code) == (0, 2)
    assert wrong.out == "wrong.yaml:4: step 'a': function: shop has no 'duoble'; did you mean 'double'?\n"
