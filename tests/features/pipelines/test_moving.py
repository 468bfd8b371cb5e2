"""A file of the Pipeline Framework that is moved over by the steps of the guide, and what becomes of its keys."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell import InvalidPipeline
from stepwell._cli.main import main
from stepwell.pipelines import Boundary, load
from stepwell.pipelines.yaml.ignored_keys import NOT_HERE, NOT_NEEDED
from stepwell.pipelines.yaml.load import read
from tests.features.pipelines.examples import Item, Priced
from tests.features.pipelines.written import put, refused

GUIDE = Path(__file__).parents[3] / "docs/guides/from-tpf-yaml.md"
KAFKA = {"kafka": {"brokers": "localhost:9092"}}

# As the framework writes such files (v26.6.1): its own example has the same keys at the same places.
FOREIGN = """\
version: 2
appName: parcel-labels
basePackage: com.example.parcels
transport: GRPC
platform: COMPUTE
runtimeLayout: monolith
aspects:
  persistence:
    enabled: true
    scope: STEPS
    position: AFTER_STEP
    config:
      targetSteps:
        - ProcessReadOrderService
messages:
  Numbers:
    fields:
      - number: 1
        name: upto
        type: int64
  Item:
    fields:
      - number: 1
        name: number
        type: int64
unions:
  Outcome:
    variants:
      priced:
        number: 1
        type: Priced
steps:
  - name: Read Order
    id: read-order
    kind: internal
    service: com.example.parcels.service.ProcessReadOrderService
    cardinality: EXPANSION
    input: com.example.parcels.common.domain.Numbers
    inputTypeName: Numbers
    inboundMapper: com.example.parcels.common.mapper.NumbersMapper
    output: com.example.parcels.common.domain.Item
    outputTypeName: Item
    outboundMapper: com.example.parcels.common.mapper.ItemMapper
  - name: Await Carrier
    kind: await
    cardinality: ONE_TO_ONE
    input: com.example.parcels.common.domain.Item
    inputTypeName: Item
    output: com.example.parcels.common.domain.Priced
    outputTypeName: Priced
    timeout: PT5M
    idempotencyKeyFields: ["number"]
    await:
      correlation:
        strategy: signedResumeToken
      transport:
        type: kafka
        request:
          topic: parcels.carrier.requests
          key: correlationId
        response:
          topic: parcels.carrier.results
        consumer:
          group: parcels-orchestrator
  - name: Take Discount
    service: com.example.parcels.service.ProcessTakeDiscountService
    cardinality: ONE_TO_ONE
    input: com.example.parcels.common.domain.Priced
    inputTypeName: Priced
    inboundMapper: com.example.parcels.common.mapper.PricedMapper
    output: com.example.parcels.common.domain.Priced
    outputTypeName: Priced
    outboundMapper: com.example.parcels.common.mapper.PricedMapper
    batchSize: 50
    parallel: true
  - name: Print Labels
    service: com.example.parcels.service.ProcessPrintLabelsService
    cardinality: MANY_TO_MANY
    input: com.example.parcels.common.domain.Priced
    inputTypeName: Priced
    inboundMapper: com.example.parcels.common.mapper.PricedMapper
    outputTypeName: "list[int]"
"""
FUNCTIONS = {"ReadOrder": "count", "TakeDiscount": "cheaper", "PrintLabels": "numbered"}


def moved(text: str) -> str:
    """The steps of the guide, in their order."""
    text = f"module: tests.features.pipelines.examples\n{text}"
    text = text.replace("version: 2\n", "")
    text = re.sub(r"^aspects:\n(?:  .*\n)+", "", text, flags=re.MULTILINE)
    return re.sub(r"service: .*Process(\w+)Service", lambda found: f"function: {FUNCTIONS[found[1]]}", text)


def test_a_file_is_valid_after_the_steps_of_the_guide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = put(tmp_path / "labels.yaml", moved(FOREIGN))

    code = main(["pipelines", "check", str(path)])

    said = capsys.readouterr().out.splitlines()
    assert (code, said[0]) == (0, f"{path}: ok: parcel-labels, 4 steps, 1 await step")
    assert [line.split(": ")[2] for line in said[1:]] == [
        "basePackage", "transport", "platform", "runtimeLayout", "messages", "unions", "id", "inboundMapper",
        "outboundMapper", "batchSize", "parallel",
    ]  # fmt: skip
    assert said[1] == f"{path}:3: note: basePackage: is ignored: modules are named by module:"
    assert said[8].endswith("inboundMapper: is ignored: a class is its own JSON, also in line 62, 73")


def test_the_guides_moved_pipeline_equals_the_one_in_the_file(tmp_path: Path) -> None:
    pipeline = load(put(tmp_path / "labels.yaml", moved(FOREIGN)), transports=KAFKA)

    [ask] = [part for part in pipeline.parts if isinstance(part, Boundary)]
    assert (pipeline.name, pipeline.version) == ("parcel-labels", 1)
    assert [part.name for part in pipeline.parts] == ["Read Order", "Await Carrier", "Take Discount", "Print Labels"]
    assert (ask.input, ask.output, ask.token, ask.idempotency) == (Item, Priced, True, ("number",))


def test_each_problem_of_an_unmoved_file_says_which_step_is_missing(tmp_path: Path) -> None:
    problems = refused(put(tmp_path / "labels.yaml", FOREIGN)).problems

    assert {problem.key for problem in problems} == {"version", "aspects", "service", "inputTypeName", "outputTypeName"}
    assert all("module" in str(problem) for problem in problems if "TypeName" in str(problem.key))


def test_notes_are_a_list_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = put(tmp_path / "labels.yaml", moved(FOREIGN))

    assert main(["pipelines", "check", "--json", str(path)]) == 0

    record = json.loads(capsys.readouterr().out)
    assert record["ok"] is True
    assert [note["key"] for note in record["notes"]].count("inboundMapper") == 3
    assert record["notes"][0] == {
        "problem": f"is ignored: {NOT_NEEDED['basePackage']}", "pipeline": "parcel-labels", "step": None,
        "key": "basePackage", "file": str(path), "line": 3,
    }  # fmt: skip


@pytest.mark.parametrize(("changes", "key", "says"), [
    ((("module: tests", "name: labels\nversion: 7\nmodule: tests"),), "version", "beside appName"),
    ((("inputTypeName: Numbers", "inputTypeName: Item"),), "inputTypeName", "names Item, but input names Numbers"),
    ((("basePackage: com.example.parcels", "materialization: {}"),), "materialization", "has no counterpart"),
    ((("    batchSize: 50\n", "    execution: {mode: REMOTE}\n"),), "execution", "has no counterpart"),
    ((("    timeout: PT5M\n", "    timeout: PT5M\n    inboundMapper: x.Y\n"),), "inboundMapper", "runs no code"),
    ((("kind: internal", "kind: remote"),), "kind", "none of step, await, internal"),
])  # fmt: skip
def test_keys_that_would_change_behaviour_are_refused_and_not_ignored(
    tmp_path: Path, changes: tuple[tuple[str, str], ...], key: str, says: str
) -> None:
    path = put(tmp_path / "labels.yaml", moved(FOREIGN), *changes)

    [problem] = [one for one in refused(path).problems if one.key == key]

    assert says in problem.problem


def test_a_version_is_the_pipelines_if_the_file_uses_a_key_of_ours(tmp_path: Path) -> None:
    text = moved(FOREIGN).replace("appName: parcel-labels", "name: labels\nversion: 7")

    pipeline = read(put(tmp_path / "labels.yaml", text))

    assert (pipeline.name, pipeline.version) == ("labels", 7)


def test_a_python_spelling_of_a_type_wins_over_the_other_one(tmp_path: Path) -> None:
    path = put(tmp_path / "labels.yaml", moved(FOREIGN), (
        "input: com.example.parcels.common.domain.Item\n", "input: tests.features.pipelines.examples:Item\n"))

    assert read(path).name == "parcel-labels"


def rows(heading: str) -> Iterator[tuple[list[str], str]]:
    """The keys in the first column of a table of the guide, and the text of the second."""
    section = GUIDE.read_text("utf-8").split(f"\n{heading}\n", 1)[1].split("\n## ", 1)[0]
    for line in section.splitlines():
        if line.startswith("| `"):
            first, second = line.strip("| ").split(" | ", 1)
            yield re.findall(r"`(\w+)[:`]", first), second


def test_the_guide_names_each_key_that_is_ignored_or_refused() -> None:
    told = {key: what for keys, what in rows("### Key by key") for key in keys}

    assert {key for key, what in told.items() if what.startswith("passed over")} == set(NOT_NEEDED)
    assert {key for key, what in told.items() if what.startswith("refused")} == set(NOT_HERE)


def test_the_guide_names_each_key_of_the_frameworks_files() -> None:
    told = {key for keys, _ in rows("### Key by key") for key in keys}

    written = set(re.findall(r"^(?:  - |    |)(\w+):", FOREIGN, flags=re.MULTILINE)) - DEEPER
    assert written <= told


DEEPER = {"persistence", "enabled", "scope", "position", "config", "fields", "variants", "priced"}


def test_each_ignored_key_alone_changes_nothing(tmp_path: Path) -> None:
    plain = "name: a\nmodule: tests.features.pipelines.examples\nsteps:\n  - name: Count\n    function: count\n"
    shape = read(put(tmp_path / "plain.yaml", plain)).parts

    for key in NOT_NEEDED:
        try:
            found = read(put(tmp_path / "p.yaml", f"{key}: x\n{plain}"))
        except InvalidPipeline:
            found = read(put(tmp_path / "p.yaml", f"{plain}    {key}: x\n"))
        assert found.parts == shape, key
