"""The authored name of the step that asks: in interactions, filters, envelopes, HTTP, the command line and errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from stepwell import InvalidPipeline
from stepwell.pipelines import Pipeline, await_, many_to_one, one_to_many, one_to_one
from stepwell.pipelines.model import Part
from stepwell.testing import Harness
from stepwell.transports.broker.envelope import write_headers
from tests.conftest import MakeHarness
from tests.features.interactions.looks import pending
from tests.features.pipelines.examples import Item
from tests.features.pipelines.streams import FAILS, answer, begun, scored
from tests.support.transports import Recording
from tests.support.waiting import eventually
from tests.surfaces.cli.processes import stepwell
from tests.surfaces.web.api import KEYS, READER, Api

NAME = "Ask the bank, twice: größer"
LARGEST = 100_000
TOO_LARGE = (f": {LARGEST + 2:,} bytes are more than max_payload ({LARGEST:,}); store a reference instead, or raise "
             "max_payload")  # fmt: skip
SHAPES = {"one to one": "ONE_TO_ONE", "one to many": "ONE_TO_MANY", "many to one": "MANY_TO_ONE",
          "many to many": "MANY_TO_MANY"}  # fmt: skip


def asking(name: str = NAME, over: str = "manual", takes_many: bool = False, **options: Any) -> Pipeline:
    """A pipeline with one await step, about its input."""
    asks = await_(name, over=over, input=Item, output=Any, **options)
    return Pipeline("asking", [asks], takes_many=takes_many)


@pytest.mark.parametrize("shape", [*SHAPES, "each"])
async def test_an_interaction_has_the_name_of_the_step_that_its_author_wrote(
    make_harness: MakeHarness, shape: str
) -> None:
    """Scenario 81, of each cardinality: in the list, in the filter of the list, in the completion."""
    takes_many = shape.startswith("many") or shape == "each"
    pipeline = asking(takes_many=takes_many, cardinality=SHAPES.get(shape, "ONE_TO_ONE"))
    h = await make_harness([pipeline])
    await h.engine.start(pipeline, [{"number": 1}] if takes_many else {"number": 1})
    await h.drain()

    [interaction] = await pending(h, step=NAME)

    assert (interaction.machine, interaction.step) == ("asking", NAME)
    assert (await h.engine.interactions.get(interaction.id)).step == NAME
    assert await pending(h, step="segment_0") == []
    assert (await h.engine.complete(interaction=interaction.id, reply=[])).step == NAME


async def test_two_await_steps_of_a_pipeline_differ_by_their_names(make_harness: MakeHarness) -> None:
    """The mission audit's script (p16)."""
    asks = [await_(name, over="manual", output=int) for name in ("Ask limit", "Ask amount")]
    pipeline = Pipeline("two", asks)
    h = await make_harness([pipeline])
    await h.engine.start(pipeline, 1)
    await h.drain()
    first = await pending(h)
    await h.engine.complete(interaction=first[0].id, reply=5)
    await h.drain()

    assert [interaction.step for interaction in first] == ["Ask limit"]
    assert [interaction.step for interaction in await pending(h, step="Ask amount")] == ["Ask amount"]
    assert await pending(h, step="Ask limit") == []


async def test_a_sent_interaction_names_the_authored_step_and_its_token_works(make_harness: MakeHarness) -> None:
    """Scenario 77: the envelope's stepId, the headers of brokers, and what the token was made of."""
    there, pipeline = Recording(), asking(over="there", token=True)
    h = await make_harness([pipeline], transports=[there], token_keys=KEYS)
    run = await h.engine.start(pipeline, {"number": 1})
    async with h.engine.worker():
        await eventually(lambda: there.sent)
        [sent] = there.sent
        await h.engine.complete(token=sent.token, reply="yes")
        result = await run.result(timeout=30)

    assert sent.envelope()["stepId"] == f"asking.{NAME}"
    assert write_headers(sent, {})["stepwell-step-id"] == f"asking.{NAME}"
    assert result == "yes"


async def test_http_shows_and_filters_by_the_authored_step(make_harness: MakeHarness) -> None:
    pipeline = asking()
    api = Api(await make_harness([pipeline], token_keys=KEYS))
    await api.h.engine.start(pipeline, {"number": 1})
    await api.h.drain()

    page = (await api.get("/interactions/pending", READER, step=NAME)).json()["interactions"]
    shown = (await api.get(f"/interactions/{page[0]['interactionId']}", READER)).json()
    taken = (await api.complete(interactionId=page[0]["interactionId"], responsePayload=1)).json()
    await api.client.aclose()

    assert [(item["step"], item["stepId"]) for item in (*page, shown)] == [(NAME, f"asking.{NAME}")] * 2
    assert taken["stepId"] == f"asking.{NAME}"


async def test_the_command_line_lists_and_completes_by_the_authored_step(make_harness: MakeHarness) -> None:
    pipeline = asking()
    h = await make_harness([pipeline])
    run = await h.engine.start(pipeline, {"number": 1})
    await h.drain()

    listed = await stepwell("interactions", "--step", NAME, url=h.url)
    nothing = await stepwell("interactions", "--step", "segment_0", url=h.url)

    assert f"asking.{NAME} #{run.id}" in listed.out
    assert "no interaction waits" in nothing.err


MINUTE = timedelta(minutes=1)


async def error(h: Harness, run: Any, kind: str) -> str:
    """What the error of a failed run says."""
    failed = await h.assert_failed(run, kind)
    assert failed.error is not None
    return failed.error.message


async def test_errors_name_the_authored_step(make_harness: MakeHarness) -> None:
    """Scenario 76: of an interaction that timed out, one of several, a failed item, no reply to continue with."""
    late, late_each, items = asking(timeout=MINUTE), scored("late", timeout=MINUTE), scored("items")
    awake = Pipeline("awake", [await_(NAME, over="manual", output=int, timeout=MINUTE, on_timeout="wake")])
    h = await make_harness([late, late_each, items, awake])
    timed_out, woken = await h.engine.start(late, {"number": 1}), await h.engine.start(awake, 1)
    timed_out_each, failing = await begun(h, late_each, 2), await begun(h, items, 2)
    await answer(h, failing, 1, points=FAILS)
    await h.drain()
    await h.advance(2 * MINUTE)
    await h.drain()

    assert f"asked by step {NAME!r} of asking, was not completed in time" in await error(h, timed_out, "AwaitTimeout")
    assert "asked by step 'Ask scores' of late, was not" in await error(h, timed_out_each, "AwaitTimeout")
    assert "an item that step 'Ask scores' of items asked about" in await error(h, failing, "ItemFailed")
    assert await error(h, woken, "Cancel") == f"await step {NAME!r} has no reply to continue with: it is timed_out"


async def test_errors_of_key_fields_name_the_authored_step_and_the_item(make_harness: MakeHarness) -> None:
    ask = await_(NAME, over="manual", output=int, idempotency=("number",))
    each, one = Pipeline("each", [ask], takes_many=True), Pipeline("one", [ask])
    h = await make_harness([each, one])
    runs = await h.engine.start(each, [{"number": 1}, {}]), await h.engine.start(one, {}), await h.engine.start(one, 7)

    await h.drain()

    says = [await error(h, run, "InvalidOutcome") for run in runs]
    assert says[0] == f"idempotency: items[1] has no field 'number', or nothing in it; {NAME!r} asks by it"
    assert says[1] == f"idempotency: the request has no field 'number', or nothing in it; {NAME!r} asks by it"
    assert says[2] == (f"idempotency: {NAME!r} names fields, but the request has none: it is a int; leave idempotency "
                       "out")


@one_to_one
async def to_text(number: int) -> str:
    return "x" * number


@one_to_many
async def to_texts(number: int) -> AsyncIterator[str]:
    yield "x"
    yield "x" * number


@many_to_one
async def count(texts: AsyncIterator[str]) -> int:
    return len([text async for text in texts])


@one_to_one
async def to_nothing(number: int) -> Any:
    return object()


@pytest.mark.parametrize(
    ("first", "number", "kind", "says"),
    [(to_text, LARGEST, "PayloadTooLarge", f"request{TOO_LARGE}; 'Ask the bank' asks about str"),
     (to_texts, LARGEST, "PayloadTooLarge", f"items[1]{TOO_LARGE}; 'Ask the bank' asks about str"),
     (to_nothing, 1, "InvalidPayload",
      "request: JSON has no object; use a typed state, or a string; asked by 'Ask the bank'")],
    ids=["too large", "too large an item", "no JSON"],
)  # fmt: skip
async def test_errors_of_unstorable_requests_name_the_authored_step(
    make_harness: MakeHarness, first: Part, number: int, kind: str, says: str
) -> None:
    """B3: beyond `max_payload`, and no JSON."""
    asks = await_("Ask the bank", over="manual", input=Any if first is to_nothing else str, output=int)
    pipeline = Pipeline("storing", [first, asks])
    h = await make_harness([pipeline], max_payload=LARGEST)
    run = await h.engine.start(pipeline, number)

    await h.drain()

    assert await error(h, run, kind) == says


@pytest.mark.parametrize("at", ["segment_0", "item_0", "segment_1"])
async def test_a_crash_loop_names_the_authored_steps(make_harness: MakeHarness, at: str) -> None:
    """B3: the engine's own names are beside them: `restart` and lists have those."""
    pipeline = Pipeline("crashing", [to_texts, await_(NAME, over="manual", input=str, output=int), to_text, count])
    h = await make_harness([pipeline], max_crashes=1)
    await h.engine.start(pipeline, 1)
    whole = at if at == "segment_0" else f"{at}.{pipeline.shape}"
    if at != "segment_0":
        await h.drain()
        for interaction in await pending(h):
            await h.engine.complete(interaction=interaction.id, reply=2)

    h.crash("executor.begun", step=whole)
    await h.drain()

    [ended] = await h.sql("select error ->> 'message' as said from stepwell.instance_data "
                          "where error ->> 'type' = 'CrashLoop'")  # fmt: skip
    names = {"segment_0": f"'to_texts', {NAME!r}", "item_0": "'to_text'", "segment_1": "'count'"}[at]
    assert ended["said"] == f"step '{whole}' ({names}) ended its worker 1 times in a row (max_crashes)"


@pytest.mark.parametrize(("name", "says"), [("", "the name is empty"), ("a\nb", "does not print"), ("x" * 201, "201")])
def test_a_name_that_cannot_be_shown_is_refused(name: str, says: str) -> None:
    """It goes into rows, headers and lists, as a machine's name does."""
    with pytest.raises(InvalidPipeline, match=says):
        asking(name)
