"""`stepwell cancel`, `retry` and `restart`; and what `tree`, `ls` and `show` print about these instances."""

from __future__ import annotations

import asyncio
import json

from stepwell import Status
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.features.pipelines.streams import answer, begun, item_id, scores
from tests.support.waiting import eventually
from tests.surfaces.cli.app import Basket, Parcel, greet, spill
from tests.surfaces.cli.processes import APP, stepwell


async def test_cancel_ends_an_instance_once_and_then_has_nothing_to_do(make_harness: MakeHarness) -> None:
    h = await make_harness([Parcel])
    order = await h.engine.start(Parcel, key="order:42")

    first = await stepwell("cancel", "--key", "order:42", "--reason", "ordered twice", "--by", "mia", url=h.url)
    second = await stepwell("cancel", order.id, "--json", url=h.url)

    assert (first.code, first.out) == (0, f"Parcel #{order.id} (order:42) was cancelled: ordered twice\n")
    assert (second.code, second.json["status"], second.json["error"]["message"]) == (1, "cancelled", "ordered twice")
    assert "nothing to cancel" in second.err
    assert "had ended already, it is cancelled" in second.err


async def test_cancel_cancels_the_children_unless_told_not_to(make_harness: MakeHarness) -> None:
    h = await make_harness([Basket, Parcel, greet])
    alone, whole = await _parked_family(h), await _parked_family(h)

    await stepwell("cancel", alone[0], "--no-cascade", url=h.url)
    await stepwell("cancel", whole[0], url=h.url)

    assert (await h.engine.get(alone[1])).status is Status.AWAITING_SIGNAL
    assert (await h.engine.get(whole[1])).status is Status.CANCELLED


async def test_retry_runs_a_failed_instance_again_and_refuses_a_done_one(make_harness: MakeHarness) -> None:
    h = await make_harness([spill, greet])
    async with h.engine.worker():
        failed, done = await h.engine.start(spill), await h.engine.start(greet)
        await asyncio.gather(failed.wait(timeout=30), done.wait(timeout=30))

    again, of_done = await asyncio.gather(
        stepwell("retry", failed.id, "--reason", "tea is back", "--json", url=h.url),
        stepwell("retry", done.id, url=h.url),
    )
    twice = await stepwell("retry", failed.id, url=h.url)

    assert (again.code, again.json["status"], again.json["error"]) == (0, "runnable", None)
    assert (of_done.code, twice.code) == (1, 1)
    assert f"is done; run it again from a step with: stepwell restart APP {done.id} --step STEP" in of_done.err
    assert "nothing to retry: spill" in twice.err


async def test_retry_of_an_instance_that_lost_its_key_exits_with_1(make_harness: MakeHarness) -> None:
    h = await make_harness([Parcel])
    first = await h.engine.start(Parcel, key="order:42")
    await first.cancel()
    second = await h.engine.start(Parcel, key="order:42")

    refused = await stepwell("retry", first.id, url=h.url)

    assert (refused.code, refused.err) == (1, f"stepwell: key 'order:42' is occupied by instance {second.id}\n")


async def test_restart_puts_an_instance_at_a_step_with_a_checked_state(make_harness: MakeHarness) -> None:
    h = await make_harness([Parcel])
    order = await h.engine.start(Parcel, key="order:42")
    await order.signal("paid", 1)
    await order.cancel()
    at_ship = ("restart", APP, "--key", "order:42", "--step", "ship")

    typo, unfit, gone = await asyncio.gather(
        stepwell("restart", APP, order.id, "--step", "shp", url=h.url),
        stepwell(*at_ship, "--state", '{"itm": "cup"}', url=h.url),
        stepwell("restart", APP, 4711, "--step", "ship", url=h.url),
    )
    before = await order.get()
    restarted = await stepwell(*at_ship, "--state", '{"item": "cup"}', "--by", "mia", url=h.url)
    after = await order.get()

    assert (typo.code, unfit.code, gone.code) == (2, 2, 1)
    assert "did you mean 'ship'?" in typo.err
    assert "did you mean 'item'?" in unfit.err
    assert (before.status, restarted.code) == (Status.CANCELLED, 0)
    assert restarted.out == f"Parcel #{order.id} (order:42) is runnable at step 'ship'\n"
    assert (after.step, after.status, after.state) == ("ship", Status.RUNNABLE, {"item": "cup"})


async def test_tree_shows_the_whole_tree_from_any_of_its_instances(make_harness: MakeHarness) -> None:
    h = await make_harness([Basket, Parcel, greet])
    parent, parked, ended = await _parked_family(h)

    drawn, lines = await asyncio.gather(
        stepwell("tree", "--key", f"cup:{parent}", url=h.url),
        stepwell("tree", parent, "--json", url=h.url),
    )

    root, first, second = drawn.out.splitlines()
    assert root == f"… Basket #{parent}  awaiting_children at close, waits for 1 child"
    assert first.startswith(f"├─ … Parcel #{parked}  awaiting_signal at ship, waits for signal 'paid' or 'waived'")
    assert first.endswith(f"at most, key cup:{parent}  ← here")
    assert second == f"└─ ✓ greet #{ended}  done"
    members = [json.loads(line) for line in lines.out.splitlines()]
    assert [(m["depth"], m["id"], m["parent_id"]) for m in members] == [
        (0, parent, None), (1, parked, parent), (1, ended, parent),
    ]  # fmt: skip


async def test_ls_and_show_print_keys_awaited_names_deadlines_and_children(make_harness: MakeHarness) -> None:
    h = await make_harness([Basket, Parcel, greet])
    parent, parked, _ = await _parked_family(h)

    listed, of_parent, of_parked, as_json = await asyncio.gather(
        stepwell("ls", "--key", f"cup:{parent}", url=h.url),
        stepwell("show", parent, url=h.url),
        stepwell("show", "--key", f"cup:{parent}", url=h.url),
        stepwell("show", parent, "--json", url=h.url),
    )

    assert listed.out.splitlines()[1].split()[:4] == [str(parked), "Parcel", f"cup:{parent}", "ship"]
    assert "signal 'paid' or 'waived', for 5" in listed.out
    assert "children   1 awaiting_signal, 1 done" in of_parent.out
    assert f"parent     #{parent}" in of_parked.out
    assert "waits for  signal 'paid' or 'waived', for 5" in of_parked.out
    assert as_json.json["children"] == {"awaiting_signal": 1, "done": 1}


async def test_items_of_a_pipeline_are_distinguished_from_children(make_harness: MakeHarness) -> None:
    """`tree` in the order of the items, `show` and `ls` by their numbers."""
    h = await make_harness([scores])
    run = await begun(h, scores, 3)
    await answer(h, run, 2)
    await h.drain()
    await answer(h, run, 0)
    last = await item_id(h, run, 2)

    drawn, of_parent, of_item, listed = await asyncio.gather(
        stepwell("tree", run.id, url=h.url), stepwell("show", run.id, "--json", url=h.url),
        stepwell("show", last, url=h.url), stepwell("ls", url=h.url),
    )  # fmt: skip

    assert [line.split("  ", 1)[1].removesuffix("  ← here") for line in drawn.out.splitlines()] == [
        f"awaiting_external at segment_1.{scores.shape}, waits for a reply over 'manual' and 1 item",
        f"item 0, runnable at item_0.{scores.shape}", "item 2, done",
    ]  # fmt: skip
    assert (of_parent.json["children"], of_parent.json["items"]) == ({}, {"done": 1, "runnable": 1})
    assert "2 of its parent" in of_item.out
    assert f"item_0.{scores.shape} #2" in listed.out


async def _parked_family(h: Harness) -> tuple[int, int, int]:
    """The ids of a basket, its parcel, which is parked, and its greeting, which has ended."""
    basket = await h.engine.start(Basket)

    async def settled() -> list[int] | None:
        children = [member for member, depth in await h.engine.insights.tree(basket.id) if depth]
        return [child.id for child in children] if children and all(c.status.is_settled for c in children) else None

    async with h.engine.worker():
        found = await eventually(settled)
    assert found is not None
    return basket.id, found[0], found[1]
