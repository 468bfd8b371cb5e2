"""`stepwell limits`: an operator shows, changes and resets limits."""

from __future__ import annotations

from datetime import timedelta

from stepwell import ConcurrencyLimit, RateLimit
from tests.conftest import MakeHarness
from tests.surfaces.cli.app import greet
from tests.surfaces.cli.processes import stepwell

LIMITS = [ConcurrencyLimit("stripe", 10), RateLimit("mail", 100, per=timedelta(minutes=1), burst=20)]


async def test_limits_are_shown_changed_and_reset(make_harness: MakeHarness) -> None:
    h = await make_harness([greet], limits=LIMITS)
    await h.engine.migrate()

    changed = await stepwell("limits", "set", "stripe", "--n", "5", "--by", "mia", url=h.url)
    shown = await stepwell("limits", url=h.url)
    again = await stepwell("limits", "reset", "stripe", "--json", url=h.url)

    assert (changed.code, shown.code, again.code) == (0, 0, 0)
    assert [line.split() for line in shown.out.splitlines()] == [
        ["limit", "kind", "n", "per", "burst", "version", "by", "executing", "waiting"],
        ["mail", "rate", "100", "60s", "20", "1", "declared", "0"],
        ["stripe", "concurrency", "5", "2", "mia", "(declared:", "10)", "0", "0"],
    ]
    assert (again.json["n"], again.json["version"], again.json["changed_by"]) == (10, 3, None)


async def test_a_rate_change_changes_each_part_and_no_limit_of_the_same_name(
    make_harness: MakeHarness,
) -> None:
    h = await make_harness([greet], limits=[*LIMITS, ConcurrencyLimit("mail", 3)])
    await h.engine.migrate()

    unsaid = await stepwell("limits", "set", "mail", "--n", "50", url=h.url)
    changed = await stepwell(
        "limits", "set", "mail", "--kind", "rate", "--n", "50", "--per", "30", "--burst", "7", "--json", url=h.url
    )

    assert (unsaid.code != 0, "kind" in unsaid.err, changed.code) == (True, True, 0)
    assert [changed.json[name] for name in ("kind", "n", "per", "burst")] == ["rate", 50, 30, 7]
    found = {(row.name, row.kind): (row.n, row.per, row.burst) for row in await h.engine.limits.list()}
    assert found["mail", "rate"] == (50, timedelta(seconds=30), 7)
    assert found["mail", "concurrency"] == (3, None, None)


async def test_a_wrong_limit_change_exits_with_its_reason_and_changes_nothing(make_harness: MakeHarness) -> None:
    h = await make_harness([greet], limits=LIMITS)
    await h.engine.migrate()

    unknown = await stepwell("limits", "set", "strpe", "--n", "5", url=h.url)
    unnamed = await stepwell("limits", "set", "--n", "5", url=h.url)

    assert unknown.code != 0
    assert "did you mean 'stripe'?" in unknown.err
    assert (unnamed.code, "name the limit to set" in unnamed.err) == (2, True)
    assert [row.version for row in await h.engine.limits.list()] == [1, 1]
