"""Projectors: the external system sends only what it knows, and the output is made from that at the completion."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import asyncpg
import pytest

from stepwell import CompletionConflict, Handle, Hold, InvalidReply, ProjectionFailed
from stepwell._core.serialization.reply_type import find_type
from stepwell.errors import DefinitionError
from stepwell.pipelines import Pipeline, await_
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.features.pipelines import projected
from tests.features.pipelines.projected import Approval, Decision, Order, approve, each, lone, together
from tests.support.waiting import eventually

PATIENCE = 10


class Called:
    """A class of an imported module, which a row might name."""

    number = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        Called.number += 1


async def ask(h: Harness, pipeline: Pipeline, given: Any) -> tuple[Handle[Any], list[str]]:
    """Start a pipeline that waits for its replies: its handle, and its interactions in item order."""
    run = await h.engine.start(pipeline, given)
    await run.wait(PATIENCE, until="settled")
    rows = await h.sql("select id::text from stepwell.interactions where instance_id = $1 order by item", run.id)
    return run, [row["id"] for row in rows]


async def test_the_output_combines_the_request_with_what_the_actor_sent(make_harness: MakeHarness) -> None:
    """Scenario 66: the output is stored; the facts are stored beside it."""
    h = await make_harness(machines=[lone])
    async with h.engine.worker():
        run, [interaction] = await ask(h, lone, Order(7, 1200))

        await h.engine.complete(interaction=interaction, reply=Decision(True), actor="ana")

        result = await run.result(PATIENCE)
    expected = {"number": 7, "cents": 1200, "is_approved": True, "by": "ana", "interaction_id": interaction}
    [stored] = await h.sql("select reply::text, facts::text from stepwell.interactions")
    assert result == expected
    assert stored["facts"] == '{"note": "", "is_approved": true}'
    assert '"cents": 1200' in stored["reply"]


async def test_each_item_has_its_own_output_and_continues_with_it(make_harness: MakeHarness) -> None:
    h = await make_harness(machines=[each])
    async with h.engine.worker():
        run, interactions = await ask(h, each, 3)

        for number, interaction in reversed([*enumerate(interactions)]):
            await h.engine.complete(interaction=interaction, reply={"is_approved": number != 1}, actor="ana")

        assert await run.result(PATIENCE) == [[0, 0, True, "ana"], [1, 100, False, "ana"], [2, 200, True, "ana"]]


async def test_an_interaction_about_all_items_is_projected_as_a_whole(make_harness: MakeHarness) -> None:
    h = await make_harness(machines=[together])
    async with h.engine.worker():
        run, [interaction] = await ask(h, together, 2)

        with pytest.raises(ProjectionFailed, match="ValueError: zip"):
            await h.engine.complete(interaction=interaction, reply=[{"is_approved": True}])
        await h.engine.complete(interaction=interaction, reply=[{"is_approved": True}, {"is_approved": False}])

        assert await run.result(PATIENCE) == [[0, 0, True, ""], [1, 100, False, ""]]


async def test_a_projector_that_raises_leaves_the_interaction_open(make_harness: MakeHarness) -> None:
    """Scenario 66: the completion is refused with the reason, and a better one is accepted."""
    h = await make_harness(machines=[lone])
    async with h.engine.worker():
        run, [interaction] = await ask(h, lone, Order(7, 1200))

        with pytest.raises(ProjectionFailed, match="PermissionError: nobody may say so") as refused:
            await h.engine.complete(interaction=interaction, reply={"is_approved": True, "note": "nobody"})
        with pytest.raises(InvalidReply, match="is_approved"):
            await h.engine.complete(interaction=interaction, reply={"is_approved": "yes"})
        open_ = await h.sql("select status, reply, facts from stepwell.interactions")
        await h.engine.complete(interaction=interaction, reply={"is_approved": True})

        assert (refused.value.interaction, refused.value.reason) == (interaction, "projection")
        assert [tuple(row) for row in open_] == [("dispatched", None, None)]
        assert (await run.result(PATIENCE))["is_approved"] is True


async def test_a_repeated_completion_is_recognised_by_what_was_sent(make_harness: MakeHarness) -> None:
    """Not by the output, which may contain the time of the completion."""
    h = await make_harness(machines=[lone])
    async with h.engine.worker():
        _, [interaction] = await ask(h, lone, Order(7, 1200))
        first = await h.engine.complete(interaction=interaction, reply={"is_approved": True}, actor="ana")

        again = await h.engine.complete(interaction=interaction, reply={"is_approved": True}, actor="bob")

        assert (first.is_duplicate, again.is_duplicate) == (False, True)
        with pytest.raises(CompletionConflict):
            await h.engine.complete(interaction=interaction, reply={"is_approved": False})


async def test_a_resumed_run_reads_the_stored_output_and_projects_nothing(make_harness: MakeHarness) -> None:
    """Scenario 66: not re-run on recovery."""
    h = await make_harness(machines=[lone])
    async with h.engine.worker():
        run, [interaction] = await ask(h, lone, Order(8, 1))
    await h.engine.complete(interaction=interaction, reply={"is_approved": True}, actor="ana")
    projected.projected.clear()

    async with h.engine.worker():
        result = await run.result(PATIENCE)

    assert (result["number"], result["by"], projected.projected) == (8, "ana", [])


async def rename(h: Harness, old: str, new: str) -> None:
    """Let the stored interactions name another function, as a process with newer code finds them."""
    await h.sql("update stepwell.reply_types set reference = replace(reference::text, $1, $2)::jsonb", old, new)


async def test_a_projector_that_has_changed_is_refused(make_harness: MakeHarness) -> None:
    """Scenario 66: its name is stored in the interaction. A process without that name does not guess."""
    h = await make_harness(machines=[lone])
    async with h.engine.worker():
        run, [interaction] = await ask(h, lone, Order(9, 1))
        await rename(h, "projected:approve", "projected:consent")

        with pytest.raises(ProjectionFailed,
                           match=r"tests\.features\.pipelines\.projected:consent is not in the process"):
            await h.engine.complete(interaction=interaction, reply={"is_approved": True})

        await rename(h, "projected:consent", "projected:approve")
        await h.engine.complete(interaction=interaction, reply={"is_approved": True})
        assert (await run.result(PATIENCE))["number"] == 9


NAMED: dict[str, tuple[str, object]] = {
    "imports": ('["projected",["dict"],["str"],"builtins:__import__",["any"]]', "antigravity"),
    "is another module's": (
        '["projected",["any"],["str"],"tests.features.pipelines.test_projecting:pytest.fail",["any"]]', ""
    ),
    "is of this module": ('["projected",["any"],["any"],"tests.features.pipelines.projected:approve_many",["any"]]',
                          []),
    "is declared for others": (
        '["projected",["any"],"tests.features.pipelines.projected:Decision","tests.features.pipelines.projected:approve",["any"]]',
        {"is_approved": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", NAMED)
async def test_a_row_can_cause_calls_of_declared_projectors_only(
    make_harness: MakeHarness, case: str
) -> None:
    h = await make_harness(machines=[lone])
    async with h.engine.worker():
        _, [interaction] = await ask(h, lone, Order(9, 1))
    projected.projected.clear()
    reference, reply = NAMED[case]
    await h.sql("update stepwell.reply_types set reference = $1, schema = null", reference)

    with pytest.raises(ProjectionFailed, match="is not in the process that completes"):
        await h.engine.complete(interaction=interaction, reply=reply)

    assert projected.projected == []
    assert "antigravity" not in sys.modules


async def test_a_row_cannot_cause_the_import_of_a_module_for_a_type(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module may import others when an attribute that it lacks is read."""
    asked_for: list[str] = []
    lazy = ModuleType("lazy")
    lazy.__getattr__ = asked_for.append  # type: ignore[method-assign]  # PEP 562
    monkeypatch.setitem(sys.modules, "lazy", lazy)
    h = await make_harness(machines=[lone])
    async with h.engine.worker():
        _, [interaction] = await ask(h, lone, Order(9, 1))
    await h.sql("update stepwell.reply_types set reference = '\"lazy:Anything\"', schema = null")

    await h.engine.complete(interaction=interaction, reply={"is_approved": True})

    assert asked_for == []


BROKEN = ["5", "null", "[]", '["literal",{"a":1}]', '["literal"]', '["tuple",["..."]]', '["projected","a",["any"]]',
          '["projected",1,2,3,["any"]]', '"asyncio:Event"', "[" * 5_000 + "]" * 5_000]  # fmt: skip


@pytest.mark.parametrize("reference", BROKEN, ids=lambda text: text[:30])
async def test_a_reference_to_an_unreadable_type_holds_its_run(
    make_harness: MakeHarness, reference: str
) -> None:
    """It stays with no worker, and no task of one ends by it."""
    h = await make_harness(machines=[lone])
    async with h.engine.worker():
        run, [interaction] = await ask(h, lone, Order(9, 1))
    await h.engine.complete(interaction=interaction, reply={"is_approved": True})
    await h.sql("update stepwell.reply_types set reference = $1", reference)

    async with h.another_engine() as other, other.worker():

        async def held() -> bool:
            return (await run.get()).hold is Hold.UNFIT

        await eventually(held)

    assert str((await run.get()).waiting_for).startswith("the type of its replies, ")


def test_a_type_reference_does_not_reach_through_imported_modules() -> None:
    assert find_type('"tests.features.pipelines.projected:Order"', "nowhere") is not None
    assert find_type('"tests.features.pipelines.test_projecting:pytest.Item"', "nowhere") is None


@pytest.mark.parametrize(
    "name", ["subprocess:Popen", "pathlib:Path", "threading:Thread", "tests.features.pipelines.test_projecting:Called"]
)
@pytest.mark.parametrize("reference", ['"{}"', '["list", "{}"]', '["union", "{}", ["none"]]'])
def test_a_class_that_is_not_for_data_is_not_a_type_and_is_not_called(reference: str, name: str) -> None:
    """M5, and decision 0029."""
    assert find_type(reference.format(name), "nowhere") is None
    assert Called.number == 0


async def test_sql_refuses_what_only_python_can_project(make_harness: MakeHarness) -> None:
    h = await make_harness(machines=[lone])
    async with h.engine.worker():
        _, [interaction] = await ask(h, lone, Order(9, 1))

    with pytest.raises(asyncpg.PostgresError, match="is not in the process that completes"):
        await h.sql("select * from stepwell.complete('{\"is_approved\": true}', interaction => $1)", interaction)


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [({"completion": Decision}, "go together"), ({"projector": approve}, "go together"),
     ({"completion": Decision, "projector": lambda a, b, c: c}, "cannot be found by another"),
     ({"completion": Decision, "projector": Order.__eq__}, "takes three arguments")],
)  # fmt: skip
def test_an_invalid_projector_is_refused_when_it_is_declared(wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises(DefinitionError, match=problem):
        await_("Ask boss", over="manual", input=Order, output=Approval, **wrong)
