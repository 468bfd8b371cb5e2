"""Open interactions are listed by deadline, filtered, page by page; and no others are."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from stepwell import InvalidInput, UnknownInteraction
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.features.interactions.askers import Recorder, asker
from tests.features.interactions.looks import asked
from tests.features.interactions.machines import Batch, Expense

SECOND = timedelta(seconds=1)


async def listed(h: Harness, **filters: Any) -> list[str]:
    """The machines of the open interactions that a filter finds, in their order."""
    return [q.machine for q in (await h.engine.interactions.pending(**filters)).items]


def forged(deadline: str) -> str:
    """A cursor that no page has given."""
    return json.dumps([deadline, "2026-01-01T00:00:00+00:00", str(uuid4())]).encode().hex()


async def test_a_listed_interaction_fits_all_filters_and_blank_ones_are_ignored(make_harness: MakeHarness) -> None:
    """Scenario 81, Gap 15: tenant, assignee, group, machine, step, transport, overdue; alone and together."""
    machines = [
        asker(name="A", assignee="ana", group="finance", timeout=10 * SECOND),
        asker(name="B", assignee="bob", group="finance", timeout=20 * SECOND),
        asker(name="C", assignee="ana", group="legal", transport="recorder", timeout=30 * SECOND),
        asker(name="D"),
    ]
    h = await make_harness(machines, transports=[Recorder()])
    for machine in machines:
        await h.engine.start(machine)
    await h.engine.start(machines[0], tenant="acme")
    await h.drain()
    await h.advance(15 * SECOND)
    expected: list[tuple[dict[str, Any], str]] = [
        ({}, "ABCD"), ({"assignee": "ana"}, "AC"), ({"group": "finance"}, "AB"),
        ({"assignee": "ana", "group": "finance"}, "A"), ({"assignee": "bob", "group": "legal"}, ""),
        ({"machine": "B"}, "B"), ({"step": "start"}, "ABCD"), ({"step": "answered"}, ""),
        ({"transport": "recorder"}, "C"), ({"transport": "manual"}, "ABD"), ({"overdue": True}, "A"),
        ({"overdue": False}, "BCD"), ({"overdue": True, "assignee": "bob"}, ""), ({"tenant": "acme"}, "A"),
        ({"tenant": "nobody"}, ""), ({"assignee": "", "group": " ", "step": "\t", "machine": ""}, "ABCD"),
        ({"assignee": "' or true --"}, ""), ({"limit": 2}, "AB"),
    ]  # fmt: skip

    found = [(filters, "".join(await listed(h, **filters))) for filters, _ in expected]

    assert found == expected


async def test_only_open_interactions_are_listed(h: Harness) -> None:
    """Scenario 81: completed, timed out, cancelled and queued ones are not listed; each has a snapshot."""
    await h.engine.start(Batch, {"items": [1, 2, 3], "window": 2})
    _, answered = await asked(h, Expense)
    await h.engine.complete(interaction=answered.id, reply={"approved": False}, actor="bob")
    cancelled, dropped = await asked(h, Expense)
    await h.engine.cancel(cancelled.id)
    _, late = await asked(h, Expense, {"seconds": 5})
    await h.advance(10 * SECOND)
    await h.drain()

    assert await listed(h) == ["Batch", "Batch"]
    shown = [await h.engine.interactions.get(q.id) for q in (answered, dropped, late)]
    assert [(q.status, q.reply, q.actor) for q in shown] == [
        ("completed", {"approved": False}, "bob"), ("cancelled", None, None), ("timed_out", None, None),
    ]  # fmt: skip
    assert [q.status.is_open for q in shown] == [False, False, False]
    assert all(q.finished_at is not None for q in shown)


async def test_pages_have_no_gap_and_no_repeat_during_completions(make_harness: MakeHarness) -> None:
    """Scenario 81, Gap 15: by deadline, those without one last; a cursor continues after what it has shown."""
    machines = [asker(name=f"M{n}", timeout=(n * SECOND if n else None)) for n in (3, 1, 0, 2)]
    h = await make_harness(machines)
    started = [await h.engine.start(machine) for machine in machines for _ in range(3)]
    await h.drain()
    page = await h.engine.interactions.pending(limit=5)
    first = [q.id for q in page.items]
    answered = (await h.engine.interactions.pending(after=page.cursor, limit=2)).items

    for interaction in (page.items[-1], page.items[0], *answered):
        await h.engine.complete(interaction=interaction.id, reply=1)
    rest: list[Any] = []
    while page.cursor is not None:
        page = await h.engine.interactions.pending(after=page.cursor, limit=2)
        assert 1 <= len(page.items) <= 2
        rest += page.items

    assert len(first) + len(rest) + 2 == len(started) == 12
    assert not {q.id for q in rest} & ({*first} | {q.id for q in answered})
    assert [q.machine for q in (*answered, *rest)] == ["M2", "M3", "M3", "M3", "M0", "M0", "M0"]


async def test_a_last_page_that_is_full_has_no_cursor(h: Harness) -> None:
    """Scenario 81: a cursor is there only if there is more."""
    await h.engine.start(Batch, {"items": [1, 2, 3]})
    await h.drain()

    exact = await h.engine.interactions.pending(limit=3)
    less = await h.engine.interactions.pending(limit=2)

    assert (len(exact.items), exact.cursor) == (3, None)
    assert (len(less.items), less.cursor is None) == (2, False)


@pytest.mark.parametrize("offset", ["+23:00", "-23:59", "+00:00:00.000001", "Z"])
async def test_a_cursor_is_compared_by_its_instant_whatever_its_utc_offset(h: Harness, offset: str) -> None:
    """Scenario 81: of the offsets that Python knows Postgres refuses some; a cursor made by hand has any."""
    _, interaction = await asked(h, Expense, {"seconds": 60})
    before, behind = (forged(f"{year}-01-01T00:00:00{offset}") for year in (2000, 3000))

    found = [(await h.engine.interactions.pending(after=cursor)).items for cursor in (before, behind)]

    assert [[q.id for q in items] for items in found] == [[interaction.id], []]


async def test_an_invalid_filter_is_refused_with_its_field(h: Harness) -> None:
    """Scenario 81: limits, cursors, filters and ids that are none; never an internal error."""
    wrong: list[tuple[str, Any]] = [
        ("limit", 0), ("limit", -1), ("limit", 501), ("limit", True), ("limit", "5"), ("after", ""), ("after", "zz"),
        ("after", "5b5d"), ("after", b"x"), ("after", b'["x","y","z"]'.hex()),
        ("after", f'["now()","today","{uuid4()}"]'.encode().hex()), ("after", f'[1,2,"{uuid4()}"]'.encode().hex()),
        ("after", f'["infinity",null,"{uuid4()}"]'.encode().hex()), ("after", forged("2026-01-01T00:00:00")),
        ("after", forged("0001-01-01T00:00:00+23:00")), ("after", forged("9999-12-31T23:59:59-23:00")),
        ("assignee", "\x00"), ("group", 5),
        ("step", "x" * 201), ("machine", "\ud800"), ("transport", ["manual"]), ("tenant", "\x00"), ("tenant", 5),
        ("overdue", "yes"),
    ]  # fmt: skip

    for field, value in wrong:
        with pytest.raises(InvalidInput) as caught:
            await h.engine.interactions.pending(**{field: value})
        assert caught.value.field == field, value
    for id_ in ("", "x", 5, None):
        with pytest.raises(InvalidInput):
            await h.engine.interactions.get(id_)  # type: ignore[arg-type]
    with pytest.raises(UnknownInteraction):
        await h.engine.interactions.get(str(uuid4()))
