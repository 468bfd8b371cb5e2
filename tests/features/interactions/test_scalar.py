"""One interaction: opened once, awaited, completed; a loop opens another one, a crash does not."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from stepwell import (
    Ask,
    Await,
    AwaitTimeout,
    Context,
    Done,
    InvalidOutcome,
    Machine,
    Next,
    Outcome,
    Retry,
    Spawn,
    Stop,
    errors,
    job,
    step,
)
from stepwell.errors import InvalidInput, InvalidPayload, UnknownTransport
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.features.interactions.askers import Recorder, asker
from tests.features.interactions.looks import asked, interaction_rows, pending
from tests.features.interactions.machines import Expense
from tests.support.waiting import eventually


class Poll(Machine):
    """Asks again until a reply says that it is enough; then asks over another transport."""

    @dataclass
    class State:
        heard: list[str]

    @step
    async def start(self, ctx: Context[State]) -> Outcome:
        if ctx.reply is not None:
            ctx.state.heard.append(ctx.reply.value)
            if ctx.reply.value == "enough":
                return Ask("recorder", {"heard": ctx.state.heard}, reply=str, then=self.told)
        return Ask("manual", {"round": len(ctx.state.heard)}, reply=str, then=self.start)

    @step
    async def told(self, ctx: Context[State]) -> Outcome:
        return Next(self.end, state=self.State([*ctx.state.heard, ctx.reply.value]))

    @step
    async def end(self, ctx: Context[State]) -> Outcome:
        return Done([ctx.state.heard, ctx.reply])


class Shaky(Machine):
    """Fails twice after it received its reply."""

    runs: list[Any] = []  # noqa: RUF012 - what this process has seen

    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        return Ask("recorder", {"a": 1}, reply=int, then=self.use)

    @step
    async def use(self, ctx: Context[Any]) -> Outcome:
        self.runs.append((ctx.attempt, ctx.reply.value))
        if ctx.attempt < 2:
            raise RuntimeError("not yet")
        return Done(ctx.reply.value)

    async def handle(self, error: Exception, ctx: Context[Any]) -> Outcome:
        return Retry() if isinstance(error, RuntimeError) else Stop(error)


class Rescued(Machine):
    """Its step fails, and `handle` asks what to do."""

    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        raise RuntimeError("broken")

    @step
    async def decided(self, ctx: Context[Any]) -> Outcome:
        return Done(ctx.reply.value)

    async def handle(self, error: Exception, ctx: Context[Any]) -> Outcome:
        return Ask("manual", {"error": str(error)}, reply=str, then=self.decided)


class Local:
    """Makes types that no other module can import."""

    @staticmethod
    def kind() -> Any:
        @dataclass
        class Hidden:
            a: int

        return Hidden


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "transport": ({"transport": "manuel"}, UnknownTransport, "did you mean 'manual'"),
    "no transport": ({"transport": None}, UnknownTransport, "no transport is called 'None'"),
    "then": ({"then": "anwsered"}, InvalidInput, "did you mean 'answered'"),
    "no then": ({"then": None}, InvalidOutcome, "then"),
    "zero": ({"timeout": timedelta(0)}, InvalidOutcome, "timeout"),
    "negative": ({"timeout": timedelta(seconds=-1)}, InvalidInput, "timeout"),
    "no duration": ({"timeout": 5}, InvalidInput, "timeout"),
    "on_timeout": ({"on_timeout": "retry"}, InvalidOutcome, "expected 'wake' or 'fail'"),
    "token": ({"token": True}, InvalidOutcome, "token: this engine has no keys"),
    "assignee": ({"assignee": "x" * 201}, InvalidInput, "assignee"),
    "group": ({"group": ""}, InvalidInput, "group"),
    "fields as one text": ({"idempotency": "order"}, InvalidOutcome, "idempotency: expected names of fields"),
    "missing field": ({"idempotency": ("order",)}, InvalidOutcome, "no field 'order'"),
    "empty field": ({"idempotency": ("b",)}, InvalidOutcome, "no field 'b', or nothing in it"),
    "fields of a list": ({"idempotency": ("a",), "request": [{"a": 1}]}, InvalidOutcome, "leave idempotency out"),
    "hidden type": ({"reply": Local.kind()}, InvalidOutcome, "cannot be found by another process"),
    "plain class": ({"reply": Local}, InvalidOutcome, "use a dataclass, a msgspec.Struct"),
    "no type": ({"reply": 17}, InvalidOutcome, "reply"),
    "no JSON": ({"request": {"a": float("nan")}}, InvalidPayload, "request"),
    "NUL": ({"request": "\x00"}, InvalidPayload, "request"),
    "large": ({"request": "x" * 3_000_000}, InvalidInput, "max_payload"),
}


class Wrong(Machine):
    """Asks with invalid arguments."""

    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        options = {"transport": "manual", "request": {"a": 1, "b": None}, "then": self.answered}
        return Ask(**{**options, **WRONG[ctx.state["how"]][0]})

    @step
    async def answered(self, ctx: Context[Any]) -> Outcome:
        return Done()


async def test_an_invalid_ask_goes_to_handle_and_leaves_no_interaction(make_harness: MakeHarness) -> None:
    """Scenarios 28, 62; Gap 6: each wrong ask is an error with its field, and nothing is open after it."""
    h = await make_harness([Wrong])
    started = await h.engine.start_many([Wrong.child({"how": how}) for how in WRONG])

    await h.drain()

    for (how, (_, kind, said)), handle in zip(WRONG.items(), started, strict=True):
        failed = await h.assert_failed(handle.id, said)
        assert failed.error is not None
        assert issubclass(_named(failed.error.type), kind), how
    assert await h.sql("select from stepwell.interactions") == await h.sql("select from stepwell.await_units") == []


OUTCOMES: dict[str, tuple[Any, str]] = {
    "Ask": (Ask("manual", {}, then="run"), "write a Machine, with a step that returns Ask"),
    "Ask.each": (Ask.each("manual", [1], then="run"), "write a Machine, with a step that returns Ask.each"),
    "Next": (Next("run"), "write a Machine"),
    "Await": (Await("paid", then="run"), "write a Machine"),
    "Spawn": (Spawn([], then="run"), "write a Machine"),
    "Retry": (Retry(), "raise an error to retry, or Cancel to fail"),
    "Done": (Done(7), "return the value itself"),
    "Stop": (Stop(), "raise an error to retry, or Cancel to fail"),
}


@job
async def asks(what: str) -> Any:
    return OUTCOMES[what][0]


@job
def asks_plainly(what: str) -> Any:
    return OUTCOMES[what][0]


class Wraps(Machine):
    """Puts an outcome into its result."""

    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        return Done(OUTCOMES[ctx.state["what"]][0])


@pytest.mark.parametrize(
    ("asking", "said"),
    [
        (asks, "job 'asks' returned {0}, which is for steps: a job ends with what it returns; {1}"),
        (asks_plainly, "job 'asks_plainly' returned {0}, which is for steps: a job ends with what it returns; {1}"),
        (Wraps, "step 'start' returned {0} inside Done; return the {0} itself"),
    ],
    ids=["async job", "sync job", "result"],
)
async def test_an_outcome_as_the_result_of_a_job_is_refused_and_not_retried(
    make_harness: MakeHarness, asking: Any, said: str
) -> None:
    """Scenario 29: a job has no step to continue at; any outcome as its result is refused by name."""
    h = await make_harness([asking])
    started = await h.engine.start_many([asking.child({"what": what}) for what in OUTCOMES])

    await h.drain(with_scheduled=True)

    for (what, (_, advice)), handle in zip(OUTCOMES.items(), started, strict=True):
        failed = await h.assert_failed(handle.id, f"result: {said.format(what, advice)}")
        assert failed.error is not None
        assert (failed.error.type, failed.attempt) == ("InvalidOutcome", 0)
    assert await h.sql("select from stepwell.interactions") == []


def _named(name: str) -> type[Exception]:
    found: type[Exception] = getattr(errors, name)
    return found


async def test_an_interaction_is_sent_once_and_parks_its_instance(make_harness: MakeHarness) -> None:
    """Scenarios 13, 23: one unit, one interaction, one dispatch, however often the step before it was killed."""
    recorder = Recorder()
    h = await make_harness([Shaky], transports=[recorder])
    h.crash("executor.returned", step="start")
    h.crash("committer.committed", step="start")

    shaky = await h.engine.start(Shaky)
    assert (await h.drain()).crashes == 2

    [row] = await interaction_rows(h, shaky.id)
    [sent] = recorder.sent
    assert (row["status"], row["attempts"], row["metadata"]) == ("dispatched", 1, '{"adapter": "recorder"}')
    assert (sent.interaction_id, sent.request, sent.attempt) == (str(row["id"]), {"a": 1}, 1)
    assert (await shaky.get()).status == "awaiting_external"


async def test_a_failing_step_after_the_reply_reads_it_again(make_harness: MakeHarness) -> None:
    """Scenario 24: the retries read the stored reply; the external system is not called again."""
    recorder = Recorder()
    h = await make_harness([Shaky], transports=[recorder])
    Shaky.runs.clear()
    shaky = await h.engine.start(Shaky)
    await h.drain()
    h.crash("executor.begun", step="use")

    await h.engine.complete(interaction=recorder.sent[0].interaction_id, reply=42)
    await h.drain()

    await h.assert_done(shaky, 42)
    assert Shaky.runs[-1] == (2, 42)
    assert {value for _, value in Shaky.runs} == {42}
    assert len(recorder.sent) == 1


async def test_an_ask_in_a_loop_opens_a_new_interaction(make_harness: MakeHarness) -> None:
    """Scenarios 25, 26: each ask has its own unit and address; a completion reaches only its own visit."""
    recorder = Recorder()
    h = await make_harness([Poll], transports=[recorder])
    poll = await h.engine.start(Poll, {"heard": []})
    addresses: list[tuple[str, str]] = []

    for word in ("no", "no", "enough"):
        await h.drain()
        [interaction] = await pending(h)
        addresses.append((interaction.id, interaction.correlation_id))
        await h.engine.complete(interaction=interaction.id, reply=word)
    await h.drain()
    await h.engine.complete(correlation=recorder.sent[0].correlation_id, reply="good")
    await h.drain()

    await h.assert_done(poll, [["no", "no", "enough", "good"], None])
    rows = await interaction_rows(h, poll.id)
    assert len({id_ for id_, _ in addresses}) == len({correlation for _, correlation in addresses}) == 3
    assert [row["visit"] for row in rows] == [1, 2, 3, 4]
    assert len({row["correlation"] for row in rows}) == len({row["idempotency_key"] for row in rows}) == 4


async def test_a_completion_of_an_earlier_visit_does_not_reach_the_next(make_harness: MakeHarness) -> None:
    """Scenario 17: repeated after the instance has continued to another interaction, it releases nothing."""
    h = await make_harness([Poll], transports=[Recorder()])
    poll = await h.engine.start(Poll, {"heard": []})
    await h.drain()
    [first] = await pending(h)
    await h.engine.complete(interaction=first.id, reply="no")
    await h.drain()

    again = await h.engine.complete(interaction=first.id, reply="no")

    assert again.is_duplicate
    assert (await h.drain()).total == 0
    assert (await poll.get()).status == "awaiting_external"


async def test_a_completion_before_the_sending_is_recorded_is_accepted(make_harness: MakeHarness) -> None:
    """Scenario 22: between the sending and its record; the dispatcher leaves a completed interaction unchanged."""
    recorder = Recorder()
    h = await make_harness([Shaky], transports=[recorder])
    Shaky.runs.clear()
    shaky = await h.engine.start(Shaky)

    with armed("dispatcher.sent", hold=True) as sent, armed("dispatcher.recorded") as recorded:
        async with h.engine.worker():
            id_ = (await sent.reached())["id"]
            await h.engine.complete(interaction=id_, reply=1)
            await eventually(lambda: Shaky.runs)
            sent.release()
            await recorded.reached()
            assert await shaky.result(30) == 1

    [row] = await interaction_rows(h, shaky.id)
    assert (row["status"], row["reply"], len(recorder.sent)) == ("completed", "1", 1)


async def test_an_interaction_is_visible_only_after_its_instance_is_parked(h: Harness) -> None:
    """Scenarios 18, 21: opening it and parking is one commit, so a completion cannot come before the park."""
    expense = await h.engine.start(Expense)

    with armed("committer.before_commit", hold=True) as before:
        async with h.engine.worker():
            await before.reached()
            early = await pending(h)
            before.release()
            [interaction] = await eventually(lambda: pending(h))
            parked = await expense.get()
            await h.engine.complete(interaction=interaction.id, reply={"approved": True})
            await expense.result(30)

    assert early == []
    assert parked.status == "awaiting_external"


async def test_handle_may_ask(make_harness: MakeHarness) -> None:
    """Scenario 27: an ask is an outcome, not an error that could be lost in another: also after one it is a park."""
    h = await make_harness([Rescued])
    rescued, interaction = await asked(h, Rescued)

    await h.engine.complete(interaction=interaction.id, reply="give up")
    await h.drain()

    assert interaction.request == {"error": "broken"}
    await h.assert_done(rescued, "give up")


async def test_an_assignee_and_a_group_are_shown_and_sent(make_harness: MakeHarness) -> None:
    """Gap 15: assignee and group are set by the machine, and are sent with the interaction."""
    recorder = Recorder()
    machine = asker(transport="recorder", request={"order": 7}, assignee="ana", group="finance", idempotency=("order",))
    h = await make_harness([machine], transports=[recorder])

    _, interaction = await asked(h, machine)

    [sent] = recorder.sent
    assert (interaction.assignee, interaction.group) == (sent.assignee, sent.group) == ("ana", "finance")
    assert sent.envelope() | {"executionId": "", "interactionId": "", "correlationId": ""} == {
        "tenantId": "", "executionId": "", "interactionId": "", "correlationId": "", "stepId": "Asker.start",
        "itemIndex": None, "idempotencyKey": interaction.idempotency_key, "attempt": 1, "deadlineEpochMs": None,
        "outputType": "anything", "resumeToken": None, "requestPayload": {"order": 7},
    }  # fmt: skip
    assert interaction.idempotency_key.endswith('{"order":7}')


async def test_equal_fields_in_two_instances_are_two_interactions(make_harness: MakeHarness) -> None:
    """Scenario 69, Gap 5: one's reply is not the other's; the key belongs to one instance unless it is shared."""
    own = asker(reply=int, request={"order": 7}, name="Own", idempotency=("order",))
    shared = asker(reply=int, request={"order": 7}, name="Shared", idempotency=("order",), shared=True)
    h = await make_harness([own, shared])
    handles = [await h.engine.start(machine) for machine in (own, own, shared, shared)]
    await h.drain()
    found = [(await interaction_rows(h, handle.id))[0] for handle in handles]

    await h.engine.complete(interaction=str(found[0]["id"]), reply=1)
    await h.engine.complete(interaction=str(found[2]["id"]), reply=3)
    await h.drain()

    keys = [row["idempotency_key"] for row in found]
    assert keys[0] != keys[1]
    assert keys[2] == keys[3] == '{"order":7}'
    assert len({row["correlation"] for row in found}) == 4
    statuses = [(await handle.get()).status for handle in handles]
    assert statuses == ["done", "awaiting_external", "done", "awaiting_external"]


async def test_a_failing_timeout_names_its_interaction(h: Harness) -> None:
    """Scenario 70: the interaction and the unit are timed out, the instance failed with AwaitTimeout."""
    expense, interaction = await asked(h, Expense, {"seconds": 60, "on_timeout": "fail"})

    await h.advance(timedelta(seconds=61))
    await h.drain()

    failed = await h.assert_failed(expense, AwaitTimeout)
    assert failed.error is not None
    assert interaction.id in failed.error.message
    [row] = await interaction_rows(h, expense.id)
    assert (row["status"], row["unit_status"]) == ("timed_out", "timed_out")


@pytest.mark.parametrize("state", [{"seconds": 60}, {"seconds": 60, "on_timeout": "wake"}])
async def test_a_timeout_that_wakes_runs_the_step_with_that_status(h: Harness, state: dict[str, Any]) -> None:
    """A timeout wakes by default: the step sees it, without a value."""
    expense, _ = await asked(h, Expense, state)

    await h.advance(timedelta(seconds=61))
    await h.drain()

    await h.assert_done(expense, {"status": "timed_out", "approved": None, "actor": None, "type": "NoneType"})
