"""Rule 31: an operator puts an instance, in any status, at a step of their choice."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepwell import Engine, InvalidInput, InvalidState, PayloadTooLarge, Status, UnknownStep, job
from stepwell._client.admin.insights import Page
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.features.signals.looks import inbox, operated
from tests.features.signals.machines import Gated, Gates, Item, Order, Waiter
from tests.support.waiting import eventually, held


@job
async def double(number: int) -> int:
    return number * 2


async def standing(h: Harness, status: str) -> int:
    """An item at the step and in the status that its state says."""
    kinds: dict[str, dict[str, Any]] = {"due": {"delay": timedelta(days=1)}, "runnable": {"queue": "nobody's"}}
    options = kinds.get(status, {})
    ends = {"cancelled": "parked", "awaiting_signal": "parked", "failed": "failed"}.get(status, "done")
    item = await h.engine.start(Item, {"number": 1, "ends": ends}, **options)
    async with h.engine.worker():
        if not options:
            await item.wait(30, until="settled")
        if status == "cancelled":
            await item.cancel()
    return item.id


@pytest.mark.parametrize("status", ["runnable", "due", "awaiting_signal", "done", "failed", "cancelled"])
async def test_rule_31_a_restart_is_possible_in_every_status(make_harness: MakeHarness, status: str) -> None:
    """Rule 31: at another step with another state; attempt, result and error are reset."""
    h = await make_harness([Item])
    item = await standing(h, status)
    before = await h.engine.get(item)

    await h.engine.restart(item, step=Item.finish, state={"number": 21}, reason="again", by="ann")
    restarted = await h.engine.get(item)
    async with h.engine.worker({"default": 1, "nobody's": 1}):
        ended = await h.engine.wait(item, timeout=30)

    assert before.status is Status("runnable" if status == "due" else status)
    assert (restarted.status, restarted.hold, restarted.step) == (Status.RUNNABLE, None, "finish")
    assert (restarted.result, restarted.error, restarted.finished_at, restarted.deadline) == (None,) * 4
    assert (ended.status, ended.result, ended.attempt) == (Status.DONE, 42, 0)
    note = await operated(h, item)
    assert (note["act"], note["by"], note["reason"]) == ("restart", "ann", "again")


async def test_rule_6_a_restart_of_a_done_instance_sees_no_earlier_signal(make_harness: MakeHarness) -> None:
    """Rule 6: Done drops the inbox just after its commit; a worker that dies in between leaves it to the restart."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)
    async with h.engine.worker():
        await waiter.signal("go", 1)
        await waiter.result(30)
    await h.sql("insert into stepwell.signals (instance_id, sent_at, name, payload) values ($1, now(), 'go', '1')",
                waiter.id)  # fmt: skip

    await h.engine.restart(waiter.id, step=Waiter.wait)
    async with h.engine.worker():
        parked = await waiter.wait(30, until="settled")

    assert (parked.status, await inbox(h, waiter.id)) == (Status.AWAITING_SIGNAL, [])


async def test_rule_31_a_restart_without_a_state_keeps_it(make_harness: MakeHarness) -> None:
    """Rule 31: the state stays unless another is given; a step may be named by reference or by name."""
    h = await make_harness([Item])
    item = await standing(h, "failed")

    await h.engine.restart(item, step="finish")
    async with h.engine.worker():
        ended = await h.engine.wait(item, timeout=30)

    assert (ended.result, ended.state) == (2, {"number": 1, "ends": "failed"})


async def test_rule_31_a_job_is_restarted_with_other_arguments(make_harness: MakeHarness) -> None:
    """Rule 31: the arguments of a job are its state; a restart takes them as a start does."""
    h = await make_harness([double])
    doubled = await h.engine.start(double, double.args(2))

    async with h.engine.worker():
        results = [await doubled.result(30)]
        for arguments in (double.args(4), {"number": 5}):
            await h.engine.restart(doubled.id, step="run", state=arguments)
            results.append(await doubled.result(30))

    assert results == [4, 8, 10]


async def test_rule_31_a_restart_of_an_executing_instance_drops_the_old_outcome(make_harness: MakeHarness) -> None:
    """Rules 1 and 31: the running step is stopped, and the instance runs at the new step."""
    gates = Gates()
    h = await make_harness([Gated], resources=gates)
    gated = await h.engine.start(Gated)

    async with h.engine.worker():
        await gates.entered.wait()
        await h.engine.restart(gated.id, step=Gated.quick, state={"note": "again"})
        result = await gated.result(30)
        await eventually(lambda: "cancelled" in gates.runs)

    assert (result, sorted(gates.runs)) == ("quick again", ["cancelled", "quick", "run"])


async def test_rule_31_a_restart_of_a_running_thread_drops_what_it_returns(make_harness: MakeHarness) -> None:
    """Rules 1 and 31: a sync step ends by itself; its outcome is of an older fence."""
    gates = Gates()
    h = await make_harness([Gated], resources=gates)
    gated = await h.engine.start(Gated, step="run_in_thread", concurrency_key="k")

    async with h.engine.worker() as worker:
        await eventually(gates.thread_entered.is_set)
        await h.engine.restart(gated.id, step=Gated.quick)
        result = await gated.result(30)
        gates.thread_open.set()
        await eventually(lambda: worker.stuck_threads == 0)
        after = await gated.get()

    assert (result, after.result) == ("quick", "quick")


async def test_rule_31_a_restarted_parent_does_not_wait_for_its_children(make_harness: MakeHarness) -> None:
    """Rule 31: from awaiting_children: it continues at once; its children stay."""
    h = await make_harness([Order, Item])
    order = await h.engine.start(Order, {"items": [{"ends": "parked"}]})

    async with h.engine.worker():
        await order.wait(30, until="settled")
        await h.engine.restart(order.id, step=Order.join)
        result = await order.result(30)

    assert [[index, outcome] for index, _, outcome in result] == [[0, None]]
    assert await h.engine.insights.list(status="cancelled") == Page([], None)


async def test_rule_31_a_restart_of_a_row_behind_a_key_waits_there_again(make_harness: MakeHarness) -> None:
    """Rules 22 and 31: a restart does not jump over mutual exclusion."""
    gates = Gates()
    h = await make_harness([Gated], resources=gates)
    holder = await h.engine.start(Gated, concurrency_key="k")

    async with h.engine.worker():
        await gates.entered.wait()
        behind = await h.engine.start(Gated, step="quick", concurrency_key="k")
        await held(behind)
        await h.engine.restart(behind.id, step="quick", state={"note": "two"})
        await held(behind)
        runs = list(gates.runs)
        gates.open.set()
        results = [await holder.result(30), await behind.result(30)]

    assert (runs, results) == (["run"], ["passed", "quick two"])


async def test_rule_31_an_unknown_step_or_a_state_that_does_not_fit_is_refused(make_harness: MakeHarness) -> None:
    """Rules 25 and 31: refused with the near miss or the field; nothing changes."""
    h = await make_harness([Item], max_payload=1_024)
    item = await standing(h, "failed")
    before = await h.engine.get(item)

    with pytest.raises(UnknownStep, match="did you mean 'finish'"):
        await h.engine.restart(item, step="finsh")
    with pytest.raises(InvalidInput, match="is not a step"):
        await h.engine.restart(item, step=print)
    with pytest.raises(InvalidState, match=r"state\.number: expected int, got str"):
        await h.engine.restart(item, step="work", state={"number": "one"})
    with pytest.raises(InvalidState):
        await h.engine.restart(item, step="work", state=[1])
    with pytest.raises(PayloadTooLarge):
        await h.engine.restart(item, step="work", state={"ends": "x" * 2_000})

    assert await h.engine.get(item) == before


async def test_rule_31_a_restart_is_refused_if_its_machine_is_not_registered(make_harness: MakeHarness) -> None:
    """Rule 31: only a process that knows the machine can check step and state; cancel and retry need not know it."""
    h = await make_harness([Item])
    item = await standing(h, "failed")

    async with Engine(h.url, machines=[Waiter]) as stranger:
        with pytest.raises(InvalidInput, match="Item version 1 is not registered here"):
            await stranger.restart(item, step="work")
        retried = await stranger.retry(item)
        cancelled = await stranger.cancel(item)

    assert (retried, cancelled) == (True, True)
