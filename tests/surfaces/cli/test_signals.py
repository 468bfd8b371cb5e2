"""`stepwell signal` and `wait`, and `start` with a key, from other processes than the worker."""

from __future__ import annotations

import asyncio

from stepwell import Status
from tests.conftest import MakeHarness
from tests.surfaces.cli.app import Parcel, spill
from tests.surfaces.cli.processes import APP, stepwell


async def test_a_signal_by_key_or_id_wakes_its_instance_once_per_dedup_key(
    make_harness: MakeHarness,
) -> None:
    h = await make_harness([Parcel])
    order = await h.engine.start(Parcel, key="order:42")
    async with h.engine.worker():
        await order.wait(timeout=30, until="settled")

    by_key = await stepwell("signal", "--key", "order:42", "paid", '{"amount": 100}', "--dedup-key=e7", url=h.url)
    by_id = await stepwell("signal", order.id, "paid", "--dedup-key=e7", "-", "--json", url=h.url, given="1")
    async with h.engine.worker():
        result = await order.result(timeout=30)

    assert (by_key.code, by_key.out) == (0, "signalled order:42: paid\n")
    assert (by_id.code, by_id.json) == (0, {"id": order.id, "name": "paid", "payload": 1, "dedup_key": "e7"})
    assert result == {"item": "teapot", "paid": [{"amount": 100}]}


async def test_a_signal_without_a_target_exits_with_1(make_harness: MakeHarness) -> None:
    h = await make_harness([Parcel])
    ended = await h.engine.start(Parcel, key="order:42")
    await ended.cancel()

    to_ended, to_nobody = await asyncio.gather(
        stepwell("signal", ended.id, "paid", url=h.url),
        stepwell("signal", "--key", "order:42", "paid", "--tenant", "acme", url=h.url),
    )

    assert (to_ended.code, to_nobody.code) == (1, 1)
    assert to_ended.err == f"stepwell: nobody to signal: no live instance with id {ended.id}\n"
    assert to_nobody.err == "stepwell: nobody to signal: no live instance with key 'order:42'\n"


async def test_an_id_of_another_tenant_is_unknown_on_the_command_line(make_harness: MakeHarness) -> None:
    h = await make_harness([Parcel])
    order = await h.engine.start(Parcel, tenant="acme")
    beside = (order.id, "--tenant", "globex")

    signal, *others = await asyncio.gather(
        stepwell("signal", *beside, "paid", url=h.url),
        *(stepwell(command, *beside, url=h.url) for command in ("show", "wait", "tree", "cancel", "retry")),
    )
    own = await stepwell("show", order.id, "--tenant", "acme", url=h.url)

    assert (signal.code, signal.err) == (1, f"stepwell: nobody to signal: no live instance with id {order.id}\n")
    assert [(other.code, other.err) for other in others] == [(1, f"stepwell: no instance with id {order.id}\n")] * 5
    assert own.code == 0
    assert (await order.get()).status is Status.RUNNABLE


async def test_wait_exits_with_0_when_the_instance_is_done_or_parked_as_wanted(make_harness: MakeHarness) -> None:
    h = await make_harness([Parcel])
    async with h.engine.worker():
        parked = await h.engine.start(Parcel, key="order:42")
        done = await h.engine.start(Parcel)
        await done.signal("waived", 5)

        settled, in_vain, result, as_json = await asyncio.gather(
            stepwell("wait", "--key", "order:42", "--until", "settled", url=h.url),
            stepwell("wait", parked.id, "--timeout", "0.1", url=h.url),
            stepwell("wait", done.id, "--timeout", "30", url=h.url),
            stepwell("wait", done.id, "--json", url=h.url),
        )

    assert settled.code == result.code == as_json.code == 0
    assert settled.out.endswith("is awaiting_signal at step 'ship', waiting for signal 'paid' or 'waived'\n")
    assert result.json == as_json.json["result"] == {"item": "teapot", "paid": [5]}
    assert (in_vain.code, in_vain.out) == (1, "")
    assert "is still awaiting_signal at step 'ship'" in in_vain.err


async def test_wait_exits_with_1_on_a_failed_cancelled_or_unknown_instance(
    make_harness: MakeHarness,
) -> None:
    h = await make_harness([Parcel, spill])
    async with h.engine.worker():
        failed = await h.engine.start(spill)
        await failed.wait(timeout=30)
    cancelled = await h.engine.start(Parcel)
    await cancelled.cancel(reason="ordered twice")

    of_failed, of_cancelled, of_none = await asyncio.gather(
        stepwell("wait", failed.id, "--until", "settled", "--json", url=h.url),
        stepwell("wait", cancelled.id, url=h.url),
        stepwell("wait", 4711, url=h.url),
    )

    assert of_failed.code == of_cancelled.code == of_none.code == 1
    assert of_failed.json["status"] == "failed"
    assert "failed at step 'run': ValueError: no tea" in of_failed.err
    assert of_cancelled.err == f"stepwell: Parcel #{cancelled.id} was cancelled: ordered twice\n"
    assert of_none.err == "stepwell: no instance with id 4711\n"


async def test_start_on_an_occupied_key_exits_with_1_or_gives_the_occupant(make_harness: MakeHarness) -> None:
    h = await make_harness([Parcel])
    key = ("--key", "order:42")

    first = await stepwell("start", APP, "Parcel", *key, "--key-scope", "forever", url=h.url)
    await h.engine.cancel(int(first.out))
    refused, returned, keyless = await asyncio.gather(
        stepwell("start", APP, "Parcel", *key, url=h.url),
        stepwell("start", APP, "Parcel", *key, "--if-exists", "return", "--json", url=h.url),
        stepwell("start", APP, "Parcel", *key, "--key-scope", "none", url=h.url),
    )

    assert (refused.code, refused.out) == (1, "")
    assert refused.err == f"stepwell: key 'order:42' is occupied by instance {first.out.strip()}\n"
    assert (returned.code, returned.json) == (0, {"id": int(first.out), "key": "order:42"})
    assert (await h.engine.get(int(keyless.out))).status is Status.RUNNABLE
