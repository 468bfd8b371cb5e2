"""`stepwell interactions` and `complete`: a person or a script lists and completes open interactions."""

from __future__ import annotations

import json
from datetime import timedelta

from stepwell import Interaction
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.surfaces.cli.app import Leave
from tests.surfaces.cli.processes import APP, stepwell

KEYS = {"2026-11": "a secret of these tests of at least 32 bytes"}
YES = '{"granted": true}'


async def ask(h: Harness, **state: object) -> Interaction:
    """An open interaction."""
    handle = await h.engine.start(Leave, state)
    await h.drain()
    page = await h.engine.interactions.pending()
    [question] = [question for question in page.items if question.instance_id == handle.id]
    return question


async def test_interactions_lists_open_ones_most_urgent_first(make_harness: MakeHarness) -> None:
    h = await make_harness([Leave])
    later, sooner = await ask(h, boss="ana", hours=30), await ask(h, boss="ana", hours=3, group="hr")
    never = await ask(h, boss="bob")

    table = await stepwell("interactions", "--assignee", "ana", url=h.url)
    first = await stepwell("interactions", "--limit", "2", "--json", url=h.url)
    cursor = first.err.split("--after ")[1].split(",")[0]
    rest = await stepwell("interactions", "--after", cursor, "--json", url=h.url)
    every = await stepwell("interactions", "--database-url", h.url, "--all", "--json", "--machine=Leave",
                           "--step=start",
                           "--transport=manual")  # fmt: skip

    header, *rows = table.out.splitlines()
    assert header.split() == ["id", "asked", "by", "asked", "deadline", "assignee", "group", "request"]
    assert [row.split()[0] for row in rows] == [sooner.id, later.id]
    assert rows[0].split()[1:3] == ["Leave.start", f"#{sooner.instance_id}"]
    assert rows[0].split()[4:] == ["ago", "in", "2h", "ana", "hr", '{"days":', "3}"]
    assert [json.loads(line)["id"] for line in first.out.splitlines()] == [sooner.id, later.id]
    assert rest.json["id"] == never.id
    assert [json.loads(line)["id"] for line in every.out.splitlines()] == [sooner.id, later.id, never.id]


async def test_interactions_shows_overdue_ones_and_says_when_none_is_open(make_harness: MakeHarness) -> None:
    h = await make_harness([Leave])
    late = await ask(h, boss="ana", hours=1)
    await ask(h, boss="ana", hours=9)
    await h.advance(timedelta(hours=2))

    overdue = await stepwell("interactions", "--overdue", url=h.url)
    nothing = await stepwell("interactions", "--tenant", "acme", url=h.url)
    wrong = await stepwell("interactions", "--limit", "0", url=h.url)
    no_cursor = await stepwell("interactions", "--after", "nonsense", url=h.url)

    assert [row.split()[0] for row in overdue.out.splitlines()[1:]] == [late.id]
    assert "overdue" in overdue.out
    assert (nothing.code, nothing.out, nothing.err) == (0, "", "no interaction waits for a reply\n")
    assert (wrong.code, no_cursor.code) == (2, 2)


async def test_complete_finds_an_interaction_by_id_correlation_and_token(make_harness: MakeHarness) -> None:
    h = await make_harness([Leave], token_keys=KEYS)
    one, two, sealed = await ask(h), await ask(h), await ask(h, token=True)
    token = await h.engine.interactions.token(sealed.id)

    by_id = await stepwell("complete", one.id, "--reply", YES, "--actor", "ana", url=h.url)
    again = await stepwell("complete", one.id, "--reply", YES, "--app", APP, url=h.url)
    by_correlation = await stepwell(
        "complete", "--correlation", two.correlation_id, "--reply", "-", "--json", url=h.url, given=YES
    )
    keys = ",".join(f"{key}:{secret}" for key, secret in KEYS.items())
    by_token = await stepwell("complete", "--token", token, "--reply", YES, url=h.url, STEPWELL_TOKEN_KEYS=keys)
    await h.drain()

    assert (by_id.code, by_id.out) == (0, f"completed {one.id}: Leave.start #{one.instance_id}\n")
    assert again.out == f"completed {one.id} (a duplicate): Leave.start #{one.instance_id}\n"
    assert (by_correlation.json["interaction_id"], by_correlation.json["is_duplicate"]) == (two.id, False)
    assert by_token.code == 0, by_token.err
    for question in (one, two, sealed):
        await h.assert_done(question.instance_id)
    assert (await h.engine.interactions.get(one.id)).actor == "ana"


async def test_complete_prints_why_a_completion_is_not_admitted(make_harness: MakeHarness) -> None:
    h = await make_harness([Leave], token_keys=KEYS)
    answered, open_, sealed = await ask(h), await ask(h), await ask(h, token=True)
    await h.engine.complete(interaction=answered.id, reply={"granted": False})

    unknown = await stepwell("complete", "7d0f0b1e-6f0c-4c39-9d4b-0d3a4a5f1c11", "--reply", YES, url=h.url)
    conflict = await stepwell("complete", answered.id, "--reply", YES, url=h.url)
    no_token = await stepwell("complete", sealed.id, "--reply", YES, url=h.url)
    wrong_type = await stepwell("complete", open_.id, "--reply", '{"granted": "perhaps"}', url=h.url)
    no_json = await stepwell("complete", open_.id, "--reply", "yes", url=h.url)
    nobody = await stepwell("complete", "--reply", YES, url=h.url)

    assert (unknown.code, conflict.code, no_token.code) == (1, 1, 1)
    assert "no interaction" in unknown.err
    assert "was completed before" in conflict.err
    assert (wrong_type.code, no_json.code, nobody.code) == (2, 2, 2)
    assert "granted" in wrong_type.err
    assert "--reply is not JSON" in no_json.err
    assert "an ID, --correlation ID or --token TOKEN is required" in nobody.err
    assert (await h.engine.interactions.get(open_.id)).status.is_open
