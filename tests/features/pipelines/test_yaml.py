"""Pipelines in YAML: what a valid file becomes, what it imports, and how all problems are shown together.

Numbers are those of the scenarios in the digest of the pipeline framework's await units.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stepwell import DefinitionError
from stepwell.pipelines import Boundary, Cardinality, Pipeline, PipelineStep, load
from stepwell.transports import Manual, Webhook
from tests.features.pipelines import written
from tests.features.pipelines.examples import Item, Numbers, Priced, count
from tests.features.pipelines.written import GOOD, TRANSPORT, cheaper, line_of, prices, put, refused

ASK = "Ask prices"
HOOK = "{type: webhook, url: https://pay.example/ask}"


def await_step(path: Path, **options: Any) -> Boundary:
    [found] = [part for part in load(path, **options).parts if isinstance(part, Boundary)]
    return found


def test_a_file_becomes_the_pipeline_that_it_describes(tmp_path: Path) -> None:
    """Scenario 1."""
    path = prices(tmp_path)

    pipeline = load(path)

    first, ask, each, last = pipeline.parts
    assert (pipeline.name, pipeline.version, pipeline.queue) == ("prices", 3, "slow")
    assert (pipeline.machine.__doc__, pipeline.transports) == ("The pipeline 'prices'.", ())
    assert ask == Boundary(
        name=ASK, over="manual", input=Item, output=Priced, timeout=timedelta(minutes=5), idempotency=("number",),
        token=True, window=7, assignee="ana", group="finance",
    )  # fmt: skip
    assert isinstance(first, PipelineStep)
    assert (first.name, first.function, first.input) == ("Count", count.function, Numbers)
    assert isinstance(each, PipelineStep)
    assert (each.function, each.retries, each.on_error, each.input) == (cheaper, 5, "reject", Priced)
    assert [each.backoff(n).total_seconds() for n in (1, 2, 3, 10)] == [2, 4, 8, 30]
    assert last.cardinality is Cardinality.MANY_TO_ONE


def test_the_pipeline_class_loads_a_file_too(tmp_path: Path) -> None:
    path = prices(tmp_path)

    pipeline = Pipeline.from_yaml(path, steps={})

    assert [part.name for part in pipeline.parts] == ["Count", ASK, "Make cheaper", "Add up"]


def test_keys_missing_in_a_file_have_the_defaults_of_python(tmp_path: Path) -> None:
    text = "name: short\nsteps:\n- {name: Count, function: 'tests.features.pipelines.examples:count'}\n"
    short = put(tmp_path / "short.yaml", text)

    pipeline = load(short)

    assert (pipeline.version, pipeline.queue, pipeline.takes_many) == (1, "default", False)
    assert pipeline.parts == (PipelineStep(name="Count", function=count.function, cardinality=count.cardinality,
                                           input=Numbers, output=Item),)  # fmt: skip


@pytest.mark.parametrize(("alias", "plain"), [("EXPANSION", "ONE_TO_MANY"), ("REDUCTION", "MANY_TO_ONE")])
def test_other_spellings_of_cardinalities_work_on_await_steps_too(tmp_path: Path, alias: str, plain: str) -> None:
    """Scenario 12."""
    text = "name: p\ntakesMany: %s\nsteps:\n- %s\n"
    step = ("{name: a, kind: await, cardinality: %s, input: int, output: int, timeout: PT1S, await: {correlation: "
            "{strategy: interactionId}, transport: {name: mine}}}")  # fmt: skip
    many = str(alias == "REDUCTION").lower()

    path = put(tmp_path / "p.yaml", text % (many, step % alias))

    assert await_step(path).cardinality is Cardinality(alias) is Cardinality(plain)


def test_both_spellings_of_types_and_of_idempotency_are_accepted(tmp_path: Path) -> None:
    path = prices(tmp_path, ("input: Item", "inputTypeName: Item"), ("output: Priced", "outputTypeName: Priced"),
                  ("idempotencyKeyFields: [number]", "idempotency: {fields: [number]}"))  # fmt: skip

    found = await_step(path)

    assert (found.input, found.output, found.idempotency) == (Item, Priced, ("number",))


@pytest.mark.parametrize("where", ["url: %s", "request: {url: %s}", "dispatch: {url: %s}"])
def test_the_url_of_a_webhook_may_be_in_three_places(tmp_path: Path, where: str) -> None:
    """Scenario 8."""
    transport = f"{{type: webhook, {where % 'https://pay.example/ask'}, timeoutMillis: 1500}}"
    path = prices(tmp_path, (TRANSPORT, transport))

    pipeline = load(path, transports={"webhook": {"secret": "x" * 32}})

    [webhook] = pipeline.transports
    assert isinstance(webhook, Webhook)
    assert (webhook._target.url, webhook._timeout) == ("https://pay.example/ask", 1.5)
    assert webhook.name == await_step(path, transports={"webhook": {"secret": None}}).over == "prices.Ask prices"


@pytest.mark.parametrize(("callback", "url"), [
    ("completionUrl: https://me.example/done, baseUrl: https://me.example", "https://me.example/done"),
    ("baseUrl: https://me.example/", "https://me.example/interactions/complete"),
    ("baseUrl: https://me.example, completionPath: /api/answer", "https://me.example/api/answer"),
])  # fmt: skip
def test_the_completion_url_of_a_webhook_is_composed(tmp_path: Path, callback: str, url: str) -> None:
    """Scenario 80."""
    path = prices(tmp_path, (TRANSPORT, HOOK.replace("url:", f"callback: {{{callback}}}, url:")))

    [webhook] = load(path, transports={"webhook": {"secret": None}}).transports

    assert isinstance(webhook, Webhook)
    assert webhook._callback == url


def test_a_value_that_a_transport_needs_beside_the_file_is_named(tmp_path: Path) -> None:
    path = prices(tmp_path, (TRANSPORT, HOOK))

    lacking = refused(path)
    wrong = refused(path, transports={"webhook": {"secret": None, "secrt": 1}})
    short = refused(path, transports={"prices.Ask prices": {"secret": "short"}})

    assert lacking.problems[0].line == line_of(path, "transport:")
    assert "await.transport: Webhook needs secret=, which does not belong in a file" in str(lacking)
    assert "Webhook takes no 'secrt'; did you mean 'secret'?" in str(wrong)
    assert "secret: 5 bytes are too few" in str(short)


def asking(folder: Path, *transports: str) -> Path:
    """Await steps one after the other, over these transports."""
    steps = [
        f"- {{name: Ask {number}, kind: await, input: int, output: int, timeout: PT1S, await: {{correlation: "
        f"{{strategy: interactionId}}, transport: {transport}}}}}\n"
        for number, transport in enumerate(transports)
    ]
    return put(folder / "asking.yaml", f"name: asking\nsteps:\n{''.join(steps)}")


def test_a_transport_may_be_the_engines_or_described_by_another_await_step(tmp_path: Path) -> None:
    path = asking(tmp_path, "{type: interaction-api, name: team}", "{name: team}", "{name: mine}")

    pipeline = load(path)

    assert [part.over for part in pipeline.parts if isinstance(part, Boundary)] == ["team", "team", "mine"]
    assert [(type(one), one.name) for one in pipeline.transports] == [(Manual, "team")]


def test_two_different_transports_of_one_name_are_refused(tmp_path: Path) -> None:
    """Of the digest's section 2.2: two adapters for one transport."""
    path = asking(tmp_path, *(f"{{type: webhook, name: hook, url: 'https://pay.example/{n}'}}" for n in "ab"))

    [problem] = refused(path).problems

    assert (problem.step, problem.key, problem.line) == ("Ask 1", "await.transport", 4)
    assert "'Ask 0' describes a transport 'hook' differently" in problem.problem


def test_all_problems_of_a_file_are_shown_together_in_its_order(tmp_path: Path) -> None:
    path = prices(tmp_path, ("version: 3", "version: x"), ("PT5M", "PT0S"), ("retries: 5", "retries: -5"),
               ("window: 7", "windw: 7"), ("function: total", "function: totl"))  # fmt: skip

    error = refused(path)

    texts = ("version: x", "PT0S", "windw", "retries", "totl")
    assert [problem.line for problem in error.problems] == [line_of(path, text) for text in texts]
    assert str(error).startswith(f"5 problems\n  {path}:2: version: expected a whole number")
    assert isinstance(error, DefinitionError)
    assert {problem.pipeline for problem in error.problems} == {"prices"}


def test_steps_that_do_not_fit_together_are_named_with_their_position(tmp_path: Path) -> None:
    path = prices(tmp_path, ("cardinality: ONE_TO_ONE\n    input", "cardinality: EXPANSION\n    input"))

    [problem] = refused(path).problems

    assert (problem.step, problem.line) == (ASK, line_of(path, "name: Ask prices"))
    assert problem.problem.startswith("is ONE_TO_MANY, but a stream comes to it")


def test_a_second_await_step_about_single_items_is_refused_at_loading(tmp_path: Path) -> None:
    """Scenario 49."""
    second = GOOD[GOOD.index("  - name: Ask prices"):GOOD.index("  - name: Make")].replace(ASK, "Ask again")
    path = prices(tmp_path, ("  - name: Add up", f"{second}  - name: Add up"))

    [problem] = refused(path).problems

    assert (problem.step, problem.line) == ("Ask again", line_of(path, "Ask again"))
    assert "asks about single items, as 'Ask prices' did" in problem.problem


def test_functions_may_be_passed_by_the_names_of_their_steps(tmp_path: Path) -> None:
    path = prices(tmp_path, ("    function: tests.features.pipelines.written:cheaper\n", ""))

    given = load(path, steps={"Make cheaper": cheaper})
    foreign = refused(path, steps={"Make cheaper": cheaper, "Make cheapr": cheaper})

    assert given.parts[2].name == "Make cheaper"
    assert "steps= has one for 'Make cheapr', which is not in the file; did you mean 'Make cheaper'?" in str(foreign)


def test_a_type_that_only_the_file_declares_is_the_type_of_the_step(tmp_path: Path) -> None:
    text = ("name: p\nmodule: tests.features.pipelines.written\ninput: 'list[Item]'\n"
            "steps:\n- {name: a, cardinality: ONE_TO_ONE, function: untyped}\n")  # fmt: skip
    path = put(tmp_path / "p.yaml", text)

    pipeline = load(path)

    assert pipeline.parts[0].input == list[Item]
    assert pipeline.read_input(pipeline.state([Item(5)])) == [[Item(5)]]


def test_anchors_and_merges_are_read_as_yaml_has_them(tmp_path: Path) -> None:
    merged = "    <<: &often {retries: 7, backoff: PT9S}\n    backoff: PT2S\n"
    path = prices(tmp_path, ("    retries: 5\n    backoff: PT2S\n", merged))

    step = load(path).parts[2]

    assert isinstance(step, PipelineStep)
    assert (step.retries, step.backoff(1)) == (7, timedelta(seconds=2))


def test_merged_keys_of_several_steps_are_not_duplicate_keys(tmp_path: Path) -> None:
    path = put(tmp_path / "p.yaml", "name: p\nmodule: tests.features.pipelines.examples\nsteps:\n"
               "- &often {<<: {retries: 7}, name: a, function: double, retries: 8}\n"
               "- {<<: *often, name: b}\n- {<<: *often, name: c}\n")  # fmt: skip

    steps = [part for part in load(path).parts if isinstance(part, PipelineStep)]

    assert [(step.name, step.retries) for step in steps] == [("a", 8), ("b", 8), ("c", 8)]


def test_an_error_in_an_imported_module_is_reported_with_its_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_steps.py").write_text("import json\n\njson.loads('{')\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = prices(tmp_path, ("function: count", "function: broken_steps:count"))

    [problem] = refused(path).problems

    assert problem.problem.startswith("importing 'broken_steps' failed: JSONDecodeError")
    assert problem.problem.endswith("broken_steps.py:3)")


def test_a_projector_belongs_to_the_await_step(tmp_path: Path) -> None:
    """Scenario 66, in a file."""
    path = prices(tmp_path,
               ("window: 7",
                "completion: {type: Item, projector: 'tests.features.pipelines.written:project'}"))  # fmt: skip

    asked = await_step(path)

    assert (asked.completion, asked.projector) == (Item, written.project)


def test_a_missing_extra_is_reported_only_when_a_file_is_read(tmp_path: Path) -> None:
    path = prices(tmp_path)
    script = (
        "import sys; sys.modules['yaml'] = None\n"
        "from stepwell import MissingExtra\n"
        "from stepwell.pipelines import load\n"
        f"try: load({str(path)!r})\n"
        "except MissingExtra as error: print(error)\n"
    )

    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert "pip install 'stepwell[yaml]'" in ran.stdout
