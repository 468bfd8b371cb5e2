"""How each wrong pipeline in YAML is refused: by file, line, step and key, and with what to do.

Numbers are those of the scenarios in the digest of the pipeline framework's await units.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell import InvalidPipeline
from stepwell.pipelines.yaml.load import read
from stepwell.pipelines.yaml.reader import DEEPEST, MOST_MERGED
from tests.features.pipelines.written import GOOD, STRATEGY, TRANSPORT, line_of, prices, put, refused

ASK = "Ask prices"

WRONG_AWAITS = {
    "timeout: is missing": ("    timeout: PT5M\n", "", "timeout", "is missing"),  # 2
    "await: is missing": (GOOD[GOOD.index("    await:"):GOOD.index("  - name: Make")], "", "await", "is missing"),
    "transport: is missing": (f"      transport: {TRANSPORT}\n", "", "await.transport", "is missing"),
    "type: is missing": (TRANSPORT, "{}", "await.transport.type", "is missing; one of interaction-api, webhook"),
    "correlation: is missing": (f"      correlation: {STRATEGY}\n", "", "await.correlation.strategy", "is missing"),
    "strategy: is missing": (STRATEGY, "{}", "await.correlation.strategy", "is missing"),
    "strategy: blank": (STRATEGY, "{strategy: ' '}", "await.correlation.strategy", "expected text"),
    "strategy: unknown": (STRATEGY, "{strategy: interactionid}", "await.correlation.strategy",
                          "did you mean 'interactionId'?"),  # 3
    "dispatch": ("      window: 7", "      dispatch: {mode: x}", "await.dispatch", "cardinality alone decides"),  # 4
    "scope": ("      window: 7", "      scope: item", "await.scope", "cardinality alone decides"),
    "service": ("    timeout: PT5M", "    timeout: PT5M\n    service: x.Y", "service", "runs no code of its own"),  # 5
    "operator": ("    timeout: PT5M", "    timeout: PT5M\n    operator: x", "operator", "runs no code of its own"),
    "delegate": ("    timeout: PT5M", "    timeout: PT5M\n    delegate: x", "delegate", "runs no code of its own"),
    "execution": ("    timeout: PT5M", "    timeout: PT5M\n    execution: {}", "execution", "has no counterpart here"),
    "mapper": ("    timeout: PT5M", "    timeout: PT5M\n    inboundMapper: x", "inboundMapper", "runs no code of its"),
    "function": ("    timeout: PT5M", "    timeout: PT5M\n    function: x:y", "function", "runs no code of its own"),
    "input: is missing": ("    input: Item\n", "", "input", "is missing"),
    "output: is missing": ("    output: Priced\n", "", "output", "is missing"),
    "output: unknown": ("output: Priced", "output: Pricd", "output", "did you mean 'Priced'?"),
    "output: no module": ("output: Priced", "output: nowhere.at:Priced", "output", "there is no module 'nowhere'"),
    "output: no type": ("output: Priced", "output: tests.features.pipelines.written:NUMBER", "output", "is not a type"),
    "output: opaque": ("output: Priced", "output: tests.features.pipelines.written:Opaque", "output",
                       "cannot be read from"),
    "types: both": ("output: Priced", "output: Priced\n    outputTypeName: Item", "outputTypeName",
                    "names Item, but output names Priced"),
    "cardinality": ("cardinality: ONE_TO_ONE\n    input", "cardinality: ONE_TO_FEW\n    input", "cardinality",
                    "is none of ONE_TO_ONE"),
    "idempotency: both": ("    timeout: PT5M", "    timeout: PT5M\n    idempotency: {fields: [number]}", "idempotency",
                          "idempotencyKeyFields is given too"),  # 9
    "idempotency: no list": ("[number]", "number", "idempotencyKeyFields", "expected a list of names"),
    "idempotency: empty": ("[number]", "[]", "idempotencyKeyFields", "expected a list of names"),
    "idempotency: unknown": ("[number]", "[nubmer]", "idempotencyKeyFields", "Item has no field 'nubmer'; did"),
    "idempotency: twice": ("[number]", "[number, number]", "idempotencyKeyFields", "names a field twice"),
    "idempotency: no fields": ("idempotencyKeyFields: [number]", "idempotency: {}", "idempotency.fields", "is missing"),
    "completion: unknown key": ("window: 7", "completion: {type: Priced, projector: x, more: y}",
                                "await.completion.more", "is unknown here"),  # 10
    "completion: blank": ("window: 7", "completion: {type: Priced, projector: ''}", "await.completion.projector",
                          "expected text"),
    "completion: no type": ("window: 7", "completion: {projector: 'tests.features.pipelines.written:project'}",
                            "await.completion.type", "is missing"),
    "projector: not loadable": ("window: 7",
                                "completion: {type: Priced, projector: 'tests.features.pipelines.written:projct'}",
                                "await.completion.projector", "did you mean 'project'?"),
    "projector: a class": ("window: 7",
                           "completion: {type: Priced, projector: 'tests.features.pipelines.written:Opaque'}",
                           "await.completion.projector", "is not a function, but the class Opaque"),
    "projector: async": ("window: 7",
                         "completion: {type: Priced, projector: 'tests.features.pipelines.written:project_later'}",
                         "await.completion.projector", "is a plain function"),
    "projector: arguments": ("window: 7",
                             "completion: {type: Priced, projector: 'tests.features.pipelines.written:line_of'}",
                             "await.completion.projector", "takes three arguments"),
    "timeout: zero": ("PT5M", "PT0S", "timeout", "above zero"),  # 11
    "timeout: negative": ("PT5M", "-PT5M", "timeout", "above zero"),
    "timeout: unparsable": ("PT5M", "5 minutes", "timeout", "a duration in ISO 8601, as PT30S"),
    "timeout: a number": ("PT5M", "300", "timeout", "a duration in ISO 8601"),
    "timeout: for ever": ("PT5M", "P40000D", "timeout", "at most P36500D"),
    "window": ("window: 7", "window: 0", "await.window", "a whole number from 1"),
    "unknown key": ("window: 7", "windwo: 7", "await.windwo", "is unknown here; did you mean 'window'?"),
    "accepts: no type": ("    timeout: PT5M", "    timeout: PT5M\n    accepts: [x]", "accepts", "has no 'x'"),
    "accepts: another type": ("    timeout: PT5M", "    timeout: PT5M\n    accepts: [Priced]", "accepts",
                              "asks about all items it gets: Item"),
    "terminal": ("    timeout: PT5M", "    timeout: PT5M\n    terminal: true", "terminal",
                 "'Make cheaper' comes behind it"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_AWAITS)
def test_a_wrong_await_is_refused_by_file_step_and_key(tmp_path: Path, case: str) -> None:
    """Scenarios 2 to 5 and 9 to 11, and the other errors of the digest's section 2.2."""
    old, new, key, says = WRONG_AWAITS[case]
    path = prices(tmp_path, (old, new))

    [problem] = [one for one in refused(path).problems if one.key == key]

    assert (problem.file, problem.step) == (str(path), ASK)
    assert says in problem.problem
    assert problem.line is not None
    assert str(problem).startswith(f"{path}:{problem.line}: step 'Ask prices': {key}: ")


KAFKA = "{type: kafka, request: {topic: ask, key: correlationId}, response: {topic: say}, consumer: {group: us}}"
SQS = "{type: sqs, request: {queueUrl: https://sqs.test/1/ask}, response: {queueUrl: https://sqs.test/1/say}}"
NATS = "{type: nats, request: {subject: pay.ask}, response: {subject: pay.say}, consumer: {durable: us}}"
HOOK = "{type: webhook, url: https://pay.example/ask}"
WRONG_TRANSPORTS = {
    "kafka: no request": (KAFKA, "request: {topic: ask, key: correlationId}, ", "", "request.topic", "is missing"),  # 6
    "kafka: no request topic": (KAFKA, "topic: ask, ", "", "request.topic", "is missing"),
    "kafka: no response": (KAFKA, "response: {topic: say}, ", "", "response.topic", "is missing"),
    "kafka: no response topic": (KAFKA, "topic: say", "", "response.topic", "is missing"),
    "kafka: bad key": (KAFKA, "correlationId", "orderId", "request.key", "is none of interactionId, correlationId"),
    "kafka: bad topic": (KAFKA, "topic: ask", "topic: a/b", "request.topic", "expected a topic of letters"),
    "kafka: both groups": (KAFKA, "consumer:", "consumerGroup: we, consumer:", "consumerGroup", "is given too"),
    "kafka: brokers": (KAFKA, "request:", "brokers: 'h:9092', request:", "brokers", "does not belong in a file"),
    "sqs: no url": (SQS, "queueUrl: https://sqs.test/1/ask", "", "request.queueUrl", "is missing"),
    "sqs: no response": (SQS, "response: {queueUrl: https://sqs.test/1/say}", "", "response.queueUrl", "is missing"),
    "sqs: fifo": (SQS, "1/ask", "1/ask.fifo", "request.queueUrl", "a FIFO queue"),  # 7
    "sqs: fifo, query": (SQS, "https://sqs.test/1/ask", "'https://q.test/ask.fifo?x=1'", "request.queueUrl", "FIFO"),
    "sqs: fifo, fragment": (SQS, "https://sqs.test/1/say", "'https://q.test/say.fifo#y'", "response.queueUrl", "FIFO"),
    "sqs: no queue": (SQS, "https://sqs.test/1/ask", "ask", "request.queueUrl", "expected the URL of a queue"),
    "nats: wildcard": (NATS, "pay.ask", "'pay.>'", "request.subject", "without wildcards"),
    "nats: durable": (NATS, "durable: us", "durable: u.s", "consumer.durable", "expected letters"),
    "webhook: no url": (HOOK, ", url: https://pay.example/ask", "", "url", "is missing; also request.url"),  # 8
    "webhook: no url in request": (HOOK, "url: https://pay.example/ask", "request: {}", "request.url", "is missing"),
    "webhook: bad url": (HOOK, "https://pay.example/ask", "pay.example", "url", "expected https://"),
    "webhook: method": (HOOK, "url:", "method: PUT, url:", "method", "are sent by POST, not by PUT"),
    "webhook: timeout": (HOOK, "url:", "timeout: 30s, url:", "timeout", "ISO 8601"),
    "webhook: two timeouts": (HOOK, "url:", "timeout: PT1S, timeoutMillis: 5, url:", "timeoutMillis", "is given too"),
    "webhook: header": (HOOK, "url:", "headers: {Host: x}, url:", "headers", "Host is set by the transport itself"),
    "webhook: header's value": (HOOK, "url:", "headers: {X-N: 5}, url:", "headers.X-N", "put it into quotes"),
    "webhook: secret": (HOOK, "url:", "secret: hunter2, url:", "secret", "transports={'webhook': {'secret': …}}"),
    "webhook: callback": (HOOK, "url:", "callback: {}, url:", "callback.baseUrl", "is missing; or completionUrl"),
    "webhook: unknown": (HOOK, "url:", "ulr: x, url:", "ulr", "did you mean 'url'?"),
    "unknown": (HOOK, "webhook", "webhok", "type", "did you mean 'webhook'?"),
    "named, with more": (HOOK, "type: webhook", "name: mine", "url", "is unknown here"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_TRANSPORTS)
def test_a_wrong_transport_is_refused_by_file_step_and_key(tmp_path: Path, case: str) -> None:
    """Scenarios 6 to 8."""
    right, old, new, key, says = WRONG_TRANSPORTS[case]
    path = prices(tmp_path, (TRANSPORT, right.replace(old, new)))

    [problem] = refused(path).problems

    assert (problem.file, problem.step, problem.key) == (str(path), ASK, f"await.transport.{key}")
    assert says in problem.problem
    assert problem.line == line_of(path, "transport:")


WRONG_STEPS = {
    "function: is missing": ("    function: count\n", "", "Count", "function", "load(…, steps={'Count': …})"),
    "function: unknown": ("function: count", "function: coutn", "Count", "function", "did you mean 'count'?"),
    "function: no function": ("function: total", "function: Item", "Add up", "function", "is not a function"),
    "function: form": ("function: count", "function: 'a:b:c'", "Count", "function", "is not of the form module:name"),
    "function: parameters": ("written:cheaper", "written:with_two", "Make cheaper", "function", "takes one parameter"),
    "cardinality: is missing": ("    cardinality: ONE_TO_ONE\n    function", "    function", "Make cheaper",
                                "cardinality", "is missing"),
    "cardinality: differs": ("function: count", "function: count\n    cardinality: ONE_TO_ONE", "Count", "cardinality",
                             "but the function is declared as ONE_TO_MANY"),
    "input: differs": ("function: count", "function: count\n    input: Item", "Count", "input",
                       "Item is given here, but the function takes Numbers"),
    "retries": ("retries: 5", "retries: -1", "Make cheaper", "retries", "a whole number from 0"),
    "retries: a flag": ("retries: 5", "retries: true", "Make cheaper", "retries", "a whole number from 0"),
    "backoff": ("backoff: PT2S", "backoff: 2", "Make cheaper", "backoff", "ISO 8601"),
    "onError": ("onError: reject", "onError: ignore", "Make cheaper", "onError", "is none of fail, reject"),
    "onError: over all": ("function: total", "function: tests.features.pipelines.written:over_all\n    onError: reject",
                          "Add up", "function", "over single items"),
    "idempotency": ("function: count", "function: count\n    idempotencyKeyFields: [x]", "Count",
                    "idempotencyKeyFields", "belongs to steps of kind: await"),
    "service": ("function: count", "function: count\n    service: x.Y", "Count", "service", "function: module:name"),
    "kind": ("kind: await", "kind: awiat", ASK, "kind", "did you mean 'await'?"),
    "unknown key": ("retries: 5", "retires: 5", "Make cheaper", "retires", "did you mean 'retries'?"),
    "name: is missing": ("name: Count", "nam: Count", "#1", "name", "is missing"),
    "name: twice": ("name: Make cheaper", "name: Count", "Count", "name", "another step, in line 7, has this name"),
    "name: no text": ("name: Count", "name: 5", "#1", "name", "put it into quotes"),
    "key twice": ("retries: 5", "retries: 5\n    retries: 6", "#3", "retries", "is written twice, first in line 25"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_STEPS)
def test_a_wrong_step_is_refused_by_file_step_and_key(tmp_path: Path, case: str) -> None:
    old, new, step, key, says = WRONG_STEPS[case]
    path = prices(tmp_path, (old, new))

    [problem] = [one for one in refused(path).problems if one.key == key]

    assert (problem.file, problem.step) == (str(path), step)
    assert says in problem.problem
    assert problem.line is not None


WRONG_TOPS = {
    "name": ("name: prices", "nmae: prices", "name", "is missing"),
    "version": ("version: 3", "version: '3'", "version", "a whole number from 1"),
    "module": ("module: tests.features.pipelines.examples", "module: tests.nowhere", "module", "there is no module"),
    "input": ("input: Numbers", "input: Item", "input", "Item is given here, but 'Count' takes Numbers"),
    "input: unknown": ("input: Numbers", "input: Number", "input", "did you mean 'Numbers'?"),
    "takesMany": ("queue: slow", "takesMany: 1", "takesMany", "expected true or false, got '1'"),
    "unknown": ("queue: slow", "quene: slow", "quene", "did you mean 'queue'?"),
    "steps": (GOOD[GOOD.index("steps:"):], "steps: []", "steps", "a list with at least one step"),
    "no steps": (GOOD[GOOD.index("steps:"):], "", "steps", "is missing"),
    "a step that is none": (GOOD[GOOD.index("steps:"):], "steps: [count]", "steps", "expected a mapping"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_TOPS)
def test_a_wrong_top_of_a_file_is_refused_by_its_key(tmp_path: Path, case: str) -> None:
    old, new, key, says = WRONG_TOPS[case]
    path = prices(tmp_path, (old, new))

    [problem] = [one for one in refused(path).problems if one.key == key]

    assert says in problem.problem
    assert problem.line is not None


@pytest.mark.parametrize(("text", "says"), [
    ("", "the file is empty"), ("- a\n", "expected a mapping with name and steps"), ("name: [", "is not YAML"),
    ("name: a\n---\nname: b\n", "is not YAML: but found another document"), ("name: !!python/name:os.system\n", "name"),
    ("name: &a [*a]\n", "name: expected one value, got a list"), ("? {a: b}\n: c\n", "a key must be text"),
    ("<<: 5\nname: x\n", "<<"),
])  # fmt: skip
def test_a_file_without_a_pipeline_is_refused_with_its_name(tmp_path: Path, text: str, says: str) -> None:
    path = put(tmp_path / "p.yaml", text)

    error = refused(path)

    assert says in str(error)
    assert {problem.file for problem in error.problems} == {str(path)}


DEEP = {
    "lists": "name: x\nsteps: " + "[" * 5_000 + "]" * 5_000,
    "mappings": "name: x\nsteps: " + "{a: " * 5_000 + "1" + "}" * 5_000,
    "lines": "name: x\nsteps:\n" + "\n".join("  " * depth + "- " for depth in range(1, 2_000)),
    "keys": "? " * 5_000 + "name",
    "never closed": "name: x\nsteps: " + "[" * 5_000,
}


@pytest.mark.parametrize("case", DEEP)
def test_a_file_nested_thousands_deep_is_refused_with_its_position(tmp_path: Path, case: str) -> None:
    path = put(tmp_path / "p.yaml", DEEP[case])

    [problem] = refused(path).problems

    assert problem.problem == f"is nested more than {DEEPEST} levels deep; nothing in a pipeline is"
    assert problem.line is not None


def test_merges_through_thousands_of_anchors_are_refused_with_a_message(tmp_path: Path) -> None:
    chain = "".join(f"k{n}: &a{n} {{<<: *a{n - 1}}}\n" for n in range(1, 3_000))
    path = put(tmp_path / "p.yaml", f"name: x\nk0: &a0 {{x: 1}}\n{chain}<<: *a2999\n")

    first = refused(path).problems[0]

    assert (first.key, first.problem) == ("<<", "merges itself, or is merged through too many others")


def test_merges_that_multiply_their_keys_are_refused_soon(tmp_path: Path) -> None:
    tenfold = "".join(f"k{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}\n" for n in range(1, 13))
    path = put(tmp_path / "p.yaml", f"name: x\nk0: &a0 {{x: 1}}\n{tenfold}<<: *a12\n")

    first = refused(path).problems[0]

    assert (first.key, first.problem) == ("<<", f"merges more than {MOST_MERGED:,} keys; nothing in a pipeline does")


RAISED_BY_THE_READER = {
    "a code point that is none": 'name: "\\UFFFFFFFF"', "the first beyond Unicode": 'name: "\\U00110000"',
    "a version of many digits": f"%YAML 1.{'9' * 5_000}\n---\nname: x", "no boolean": "name: !!bool x",
    "no time": "name: !!timestamp x", "an empty number": 'name: !!int ""', "an empty float": 'name: !!float ""',
    "a float beyond floats": f"name: 1{':59' * 3_000}.0",
}


@pytest.mark.parametrize("case", RAISED_BY_THE_READER)
def test_a_text_at_which_the_yaml_reader_breaks_is_refused(tmp_path: Path, case: str) -> None:
    path = put(tmp_path / "p.yaml", RAISED_BY_THE_READER[case])

    first = refused(path).problems[0]

    assert first.problem.startswith(("is not YAML: ", "expected a plain value"))


def test_a_list_type_nested_thousands_deep_is_refused(tmp_path: Path) -> None:
    path = prices(tmp_path, ("input: Item", f'input: "{"list[" * 3_000}str{"]" * 3_000}"'))

    [problem] = [one for one in refused(path).problems if one.key == "input"]

    assert problem.problem == f"is a list nested more than {DEEPEST} levels deep"


@pytest.mark.parametrize(("module", "says"), [
    ("raise SystemExit(3)", "importing 'odd_module' failed: SystemExit: 3"),
    ("def __getattr__(name): raise ImportError('no such extra')", "has no 'count': ImportError: no such extra"),
    ("count = max", "no signature found"),
])  # fmt: skip
def test_a_module_that_raises_anything_refuses_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, says: str
) -> None:
    (tmp_path / "odd_module.py").write_text(module, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "odd_module", raising=False)
    path = prices(tmp_path, ("function: count", "function: odd_module:count\n    cardinality: ONE_TO_MANY"))

    [problem] = [one for one in refused(path).problems if one.key == "function"]

    assert says in problem.problem


ODD = [
    "null", "5", "-1", "1e400", "[]", "{}", "[a]", "{a: b}", "''", "true", "2020-13-45", "!!int x", "!foo bar", "*x",
    "list[", "os:system", ":", "a:", "PT9999999999999S", "1:30:00", "x" * 300,
    "tests.features.pipelines.written:NUMBER",
    '"\\0"', "https://[", "!!python/object:os.system {}", "typing:Optional", "&x [*x]",
]  # fmt: skip


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    line=st.integers(0, GOOD.count("\n") - 1), odd=st.sampled_from(ODD),
    transport=st.sampled_from([TRANSPORT, HOOK, KAFKA, SQS, NATS]),
)  # fmt: skip
def test_a_file_with_any_value_under_a_key_is_read_or_refused(
    tmp_path: Path, line: int, odd: str, transport: str
) -> None:
    lines = GOOD.replace(TRANSPORT, transport).splitlines()
    lines[line] = f"{lines[line].partition(':')[0]}: {odd}"
    path = put(tmp_path / "odd.yaml", "\n".join(lines))

    try:
        shown = read(path).diagram()
    except InvalidPipeline as error:
        shown = str(error)

    assert "segment 0" in shown or str(path) in shown


def test_a_file_that_cannot_be_read_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes("name: préis\n".encode("latin-1"))

    assert str(refused(tmp_path / "no.yaml")) == f"{tmp_path}/no.yaml: cannot be read: No such file or directory"
    assert str(refused(tmp_path / "latin.yaml")) == f"{tmp_path}/latin.yaml: cannot be read: it is not UTF-8"
