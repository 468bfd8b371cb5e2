"""One interaction about many elements: request and reply may be lists; both are bounded and typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from stepwell import Ask, Context, Done, InvalidReply, Machine, Outcome, Retry, Stop, step
from stepwell.outcomes import MAX_ITEMS
from tests.conftest import MakeHarness
from tests.features.interactions.askers import asker
from tests.features.interactions.kinds import Person, Score
from tests.features.interactions.looks import COMPLETERS, Refused, asked, interaction_rows, pending, snapshot


class Ranking(Machine):
    """MANY_TO_MANY: asks about all of its items at once, and ranks the replies; fails once, half way."""

    seen: list[str] = []  # noqa: RUF012 - what this process has seen

    @dataclass
    class State:
        names: list[str]

    @step
    async def start(self, ctx: Context[State]) -> Outcome:
        return Ask("manual", [Score(name) for name in ctx.state.names], reply=list[Score], then=self.rank)

    @step
    async def rank(self, ctx: Context[State]) -> Outcome:
        for score in ctx.reply.value:
            self.seen.append(score.name)
            if ctx.attempt == 1 and score.points == 2:  # the first attempt is killed
                raise RuntimeError("half way through")
        return Done([score.name for score in sorted(ctx.reply.value, key=lambda score: -score.points)])

    async def handle(self, error: Exception, ctx: Context[State]) -> Outcome:
        return Retry() if isinstance(error, RuntimeError) else Stop(error)


async def test_many_to_many_is_one_interaction_with_a_list_that_is_replayed_whole(make_harness: MakeHarness) -> None:
    """Scenarios 50, 52, 55, 56; Gap 17: one interaction; half way, or killed, the whole stored list is read again."""
    h = await make_harness([Ranking])
    Ranking.seen.clear()
    ranking, interaction = await asked(h, Ranking, {"names": ["a", "b", "c"]})
    h.crash("executor.begun", step="rank")

    reply = [{"name": "a", "points": 1}, {"name": "b", "points": 2}, {"name": "c", "points": 3}]
    await h.engine.complete(interaction=interaction.id, reply=reply)
    await h.drain()

    assert interaction.request == [{"name": name, "points": 0} for name in "abc"]
    assert len(await interaction_rows(h, ranking.id)) == 1
    assert Ranking.seen == ["a", "b", "a", "b", "c"]
    await h.assert_done(ranking, ["c", "b", "a"])


async def test_one_to_many_and_many_to_one_have_typed_replies(make_harness: MakeHarness) -> None:
    """Scenarios 51, 52: one interaction each; the step gets the list in its order, or the one value."""
    to_many = asker(reply=list[Score], request={"order": 1}, name="ToMany")
    to_one = asker(reply=Score, request=[1, 2, 3], name="ToOne")
    h = await make_harness([to_many, to_one])
    _, many = await asked(h, to_many)
    _, one = await asked(h, to_one)

    await h.engine.complete(interaction=many.id, reply=[{"name": "z"}, {"name": "a"}])
    await h.engine.complete(interaction=one.id, reply={"name": "best"})
    await h.drain()

    assert to_many.seen.replies[0].value == [Score("z"), Score("a")]
    assert to_one.seen.replies[0].value == Score("best")
    assert (many.index, one.index) == (None, None)


async def test_an_empty_list_opens_an_interaction(make_harness: MakeHarness) -> None:
    """Scenario 57: Ask asks once whatever the list, also about none (Ask.each asks nothing); an empty reply is one."""
    machine = asker(reply=list[int], request=[])
    h = await make_harness([machine])
    handle, interaction = await asked(h, machine)

    await h.engine.complete(interaction=interaction.id, reply=[])
    await h.drain()

    assert interaction.request == []
    await h.assert_done(handle, "completed")
    assert machine.seen.replies[0].value == []


@pytest.mark.parametrize("request_", [list(range(MAX_ITEMS + 1)), tuple(range(MAX_ITEMS + 1))])
async def test_an_interaction_with_too_many_elements_is_refused_with_the_limit(
    make_harness: MakeHarness, request_: Any
) -> None:
    """Scenario 53: refused to `handle` with the limit; one less is asked."""
    over, under = asker(request=request_, name="Over"), asker(request=request_[1:], name="Under")
    h = await make_harness([over, under])
    refused = await h.engine.start(over)

    _, interaction = await asked(h, under)

    await h.assert_failed(refused, "10,001 items are more than one request may have (10,000)")
    assert await interaction_rows(h, refused.id) == []
    assert len(interaction.request) == MAX_ITEMS


@pytest.mark.parametrize("way", COMPLETERS)
async def test_a_reply_with_too_many_elements_leaves_the_interaction_open(make_harness: MakeHarness, way: str) -> None:
    """Scenario 54: the limit is named; one less is taken."""
    machine = asker(reply=list[int])
    h = await make_harness([machine])
    completer = COMPLETERS[way](h)
    _, interaction = await asked(h, machine)
    before = await snapshot(h)

    with pytest.raises(Refused) as caught:
        await completer.complete(interaction=interaction.id, reply=[1] * (MAX_ITEMS + 1))

    assert "10,000" in caught.value.said.replace("10000", "10,000")
    assert caught.value.reason == "type"
    assert await snapshot(h) == before
    assert not await completer.complete(interaction=interaction.id, reply=[1] * MAX_ITEMS)


@pytest.mark.parametrize("way", COMPLETERS)
async def test_an_ask_may_state_its_number_of_elements(make_harness: MakeHarness, way: str) -> None:
    """Scenarios 53, 54: fewer, or with 0 any number; the reply is checked against it too."""
    more = [0] * (MAX_ITEMS + 1)
    few, any_ = asker(list[int], [1, 2], name="Few", max_items=2), asker(list[int], more, name="Any", max_items=0)
    over = asker(list[int], [1, 2, 3], name="Over", max_items=2)
    h = await make_harness([few, any_, over])
    completer = COMPLETERS[way](h)
    refused = await h.engine.start(over)
    _, small = await asked(h, few)
    _, large = await asked(h, any_)

    with pytest.raises(Refused, match="has 3 items, one reply may have 2"):
        await completer.complete(interaction=small.id, reply=[1, 2, 3])

    assert not await completer.complete(interaction=small.id, reply=[1, 2])
    assert not await completer.complete(interaction=large.id, reply=more)
    await h.assert_failed(refused, "3 items are more than one request may have (2)")


@pytest.mark.parametrize("way", COMPLETERS)
async def test_each_element_of_a_reply_is_checked(make_harness: MakeHarness, way: str) -> None:
    """Scenario 58, Gap 7: the element that does not fit is named by its index; nothing is taken."""
    kinds = {"Scores": list[Score], "Persons": list[Person], "Named": dict[str, list[Score]]}
    wrong: dict[str, tuple[Any, str]] = {
        "Scores": ([{"name": "a"}, {"name": "b", "points": "many"}], "reply[1].points"),
        "Persons": ([{"name": "a"}, {"name": "b"}, {"name": 3}], "reply[2].name"),
        "Named": ({"x": [{"name": "a"}, {"points": 1}]}, "name"),
    }
    machines = {name: asker(reply=kind, name=name) for name, kind in kinds.items()}
    h = await make_harness(machines.values())
    for machine in machines.values():
        await h.engine.start(machine)
    await h.drain()
    found = await pending(h)

    for interaction in found:
        reply, place = wrong[interaction.machine]
        with pytest.raises(Refused) as caught:
            await COMPLETERS[way](h).complete(interaction=interaction.id, reply=reply)
        assert caught.value.reason == "type"
        assert place in caught.value.said

    assert len(await pending(h)) == 3


async def test_a_wrong_element_is_reported_with_its_path(make_harness: MakeHarness) -> None:
    """Scenario 58: the error has the field, for programs."""
    machine = asker(reply=list[Score])
    h = await make_harness([machine])
    _, interaction = await asked(h, machine)

    with pytest.raises(InvalidReply) as caught:
        await h.engine.complete(interaction=interaction.id, reply=[{"name": None}])

    assert (caught.value.field, caught.value.interaction) == ("reply[0].name", interaction.id)
