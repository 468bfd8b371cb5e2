"""Projectors: the other side sends only what it knows, and the reply is made of that when it is admitted."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

from stepwell import CompletionConflict, Handle, InvalidReply, ProjectionFailed
from stepwell.errors import DefinitionError
from stepwell.pipelines import Pipeline, await_
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.pipelines import projected
from tests.pipelines.projected import Approval, Decision, Order, approve, each, lone, together

PATIENCE = 10


async def ask(h: Harness, pipeline: Pipeline, given: Any) -> tuple[Handle[Any], list[str]]:
    """Start a pipeline that waits for its answers: its handle, and its questions in the order of their items."""
    run = await h.engine.start(pipeline, given)
    await run.wait(PATIENCE, until="settled")
    rows = await h.sql("select id::text from stepwell.interactions where instance_id = $1 order by item", run.id)
    return run, [row["id"] for row in rows]


async def test_the_output_combines_the_request_with_what_the_actor_sent(make_harness: MakeHarness) -> None:
    """Scenario 66: what is stored is the output; the facts stand beside it."""
    h = await make_harness(machines=[lone])
    async with h.engine.worker():
        run, [question] = await ask(h, lone, Order(7, 1200))

        await h.engine.complete(interaction=question, reply=Decision(True), actor="ana")

        result = await run.result(PATIENCE)
    expected = {"number": 7, "cents": 1200, "is_approved": True, "by": "ana", "interaction_id": question}
    [stored] = await h.sql("select reply::text, facts::text from stepwell.interactions")
    assert result == expected
    assert stored["facts"] == '{"note": "", "is_approved": true}'
    assert '"cents": 1200' in stored["reply"]


async def test_each_item_has_its_own_output_and_goes_on_with_it(make_harness: MakeHarness) -> None:
    h = await make_harness(machines=[each])
    async with h.engine.worker():
        run, questions = await ask(h, each, 3)

        for number, question in reversed([*enumerate(questions)]):
            await h.engine.complete(interaction=question, reply={"is_approved": number != 1}, actor="ana")

        assert await run.result(PATIENCE) == [[0, 0, True, "ana"], [1, 100, False, "ana"], [2, 200, True, "ana"]]


async def test_a_question_about_all_is_projected_as_a_whole(make_harness: MakeHarness) -> None:
    h = await make_harness(machines=[together])
    async with h.engine.worker():
        run, [question] = await ask(h, together, 2)

        with pytest.raises(ProjectionFailed, match="ValueError: zip"):
            await h.engine.complete(interaction=question, reply=[{"is_approved": True}])
        await h.engine.complete(interaction=question, reply=[{"is_approved": True}, {"is_approved": False}])

        assert await run.result(PATIENCE) == [[0, 0, True, ""], [1, 100, False, ""]]


async def test_a_projector_that_raises_leaves_the_question_open(make_harness: MakeHarness) -> None:
    """Scenario 66: the answer is refused with the reason, and a better one is taken."""
    h = await make_harness(machines=[lone])
    async with h.engine.worker():
        run, [question] = await ask(h, lone, Order(7, 1200))

        with pytest.raises(ProjectionFailed, match="PermissionError: nobody may say so") as refused:
            await h.engine.complete(interaction=question, reply={"is_approved": True, "note": "nobody"})
        with pytest.raises(InvalidReply, match="is_approved"):
            await h.engine.complete(interaction=question, reply={"is_approved": "yes"})
        open_ = await h.sql("select status, reply, facts from stepwell.interactions")
        await h.engine.complete(interaction=question, reply={"is_approved": True})

        assert (refused.value.interaction, refused.value.reason) == (question, "projection")
        assert [tuple(row) for row in open_] == [("dispatched", None, None)]
        assert (await run.result(PATIENCE))["is_approved"] is True


async def test_a_repeated_answer_is_known_by_what_was_sent(make_harness: MakeHarness) -> None:
    """Not by the output, of which the time of the answer may be a part."""
    h = await make_harness(machines=[lone])
    async with h.engine.worker():
        _, [question] = await ask(h, lone, Order(7, 1200))
        first = await h.engine.complete(interaction=question, reply={"is_approved": True}, actor="ana")

        again = await h.engine.complete(interaction=question, reply={"is_approved": True}, actor="bob")

        assert (first.is_duplicate, again.is_duplicate) == (False, True)
        with pytest.raises(CompletionConflict):
            await h.engine.complete(interaction=question, reply={"is_approved": False})


async def test_going_on_again_reads_what_was_made_and_projects_nothing(make_harness: MakeHarness) -> None:
    """Scenario 66: not re-run on recovery."""
    h = await make_harness(machines=[lone])
    async with h.engine.worker():
        run, [question] = await ask(h, lone, Order(8, 1))
    await h.engine.complete(interaction=question, reply={"is_approved": True}, actor="ana")
    projected.projected.clear()

    async with h.engine.worker():
        result = await run.result(PATIENCE)

    assert (result["number"], result["by"], projected.projected) == (8, "ana", [])


async def test_a_projector_that_is_not_what_it_was_is_refused(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 66: its name is pinned in the question. Who has it under that name no more does not guess."""
    h = await make_harness(machines=[lone])
    async with h.engine.worker():
        run, [question] = await ask(h, lone, Order(9, 1))
        with monkeypatch.context() as redeployed:
            redeployed.delattr(projected, "approve")

            with pytest.raises(ProjectionFailed, match=r"tests\.pipelines\.projected:approve is not in the process"):
                await h.engine.complete(interaction=question, reply={"is_approved": True})

        await h.engine.complete(interaction=question, reply={"is_approved": True})
        assert (await run.result(PATIENCE))["number"] == 9


async def test_sql_refuses_what_only_python_can_project(make_harness: MakeHarness) -> None:
    h = await make_harness(machines=[lone])
    async with h.engine.worker():
        _, [question] = await ask(h, lone, Order(9, 1))

    with pytest.raises(asyncpg.PostgresError, match="is not in the process that answers"):
        await h.sql("select * from stepwell.complete('{\"is_approved\": true}', interaction => $1)", question)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [({"completion": Decision}, "go together"), ({"projector": approve}, "go together"),
     ({"completion": Decision, "projector": lambda a, b, c: c}, "can not be found again"),
     ({"completion": Decision, "projector": Order.__eq__}, "takes three arguments")],
)  # fmt: skip
def test_a_wrong_projector_is_refused_when_it_is_declared(wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises(DefinitionError, match=problem):
        await_("Ask boss", over="inbox", input=Order, output=Approval, **wrong)
