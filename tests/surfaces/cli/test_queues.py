"""`stepwell queues`: the table, pause and resume."""

from __future__ import annotations

import asyncio
import json

from tests.conftest import MakeHarness
from tests.surfaces.cli.app import Parcel
from tests.surfaces.cli.processes import stepwell


async def test_queues_are_shown_paused_and_resumed(make_harness: MakeHarness) -> None:
    h = await make_harness([Parcel])
    order = await h.engine.start(Parcel)

    paused = await stepwell("queues", "pause", "default", "--reason", "stocktaking", "--by", "mia", url=h.url)
    table, shown, lines = await asyncio.gather(
        stepwell("queues", url=h.url), stepwell("show", order.id, url=h.url), stepwell("queues", "--json", url=h.url)
    )
    again = await stepwell("queues", "pause", "default", url=h.url)
    resumed = await stepwell("queues", "resume", "default", url=h.url)
    in_vain = await stepwell("queues", "resume", "default", "--json", url=h.url)

    assert (paused.code, paused.out) == (0, "queue 'default' is paused\n")
    assert table.out.splitlines()[0].split() == ["queue", "fair", "by", "runnable", "executing", "held", "paused"]
    assert table.out.splitlines()[1].split()[:4] == ["default", "1", "0", "0"]
    assert table.out.rstrip().endswith("by mia: stocktaking")
    assert "queue 'default' is paused: stocktaking" in shown.out
    assert json.loads(lines.out)["reason"] == "stocktaking"
    assert (again.code, again.err) == (1, "stepwell: nothing to pause: queue 'default' was paused already\n")
    assert (resumed.code, resumed.out) == (0, "queue 'default' is resumed\n")
    assert (in_vain.code, in_vain.json["paused_at"]) == (1, None)


async def test_queues_refuses_invalid_arguments(make_harness: MakeHarness) -> None:
    h = await make_harness([Parcel])

    nameless, typo, reason, act = await asyncio.gather(
        stepwell("queues", "pause", url=h.url),
        stepwell("queues", "pause", "defualt", url=h.url),
        stepwell("queues", "resume", "default", "--reason", "why", url=h.url),
        stepwell("queues", "stop", "default", url=h.url),
    )

    assert {nameless.code, typo.code, reason.code, act.code} == {2}
    assert "pause: the NAME of a queue is required" in nameless.err
    assert "did you mean 'default'?" in typo.err
    assert "--reason and --by belong to a pause" in reason.err
