"""A tenant beside an id is compared: another tenant's instance is as good as unknown."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import Handle, InvalidInput, NoTarget, NotFound, Status
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.features.signals.looks import count
from tests.features.signals.machines import Waiter

WRONG = ("globex", "ACME", "")


async def acme(h: Harness) -> Handle:
    """An instance of acme, parked."""
    handle = await h.engine.start(Waiter, tenant="acme")
    async with h.engine.worker():
        await handle.wait(30, until="settled")
    return handle


async def test_rule_31_an_id_of_another_tenant_is_not_found(make_harness: MakeHarness) -> None:
    h = await make_harness([Waiter])
    handle = await acme(h)
    before = await handle.get()

    for tenant in WRONG:
        for call in (h.engine.get, h.engine.wait, h.engine.cancel, h.engine.retry):
            with pytest.raises(NotFound) as caught:
                await call(handle.id, tenant=tenant)
            assert caught.value.target == handle.id
        with pytest.raises(NotFound):
            await h.engine.restart(handle.id, step=before.step, tenant=tenant)

    assert await handle.get() == before


async def test_rule_15_a_signal_to_an_id_of_another_tenant_is_not_delivered(make_harness: MakeHarness) -> None:
    h = await make_harness([Waiter])
    handle = await acme(h)

    for tenant in WRONG:
        for dedup_key in (None, "e7"):
            with pytest.raises(NoTarget) as caught:
                await h.engine.signal(handle.id, "go", dedup_key=dedup_key, tenant=tenant)
            assert caught.value.target == handle.id

    assert (await handle.get()).status is Status.AWAITING_SIGNAL
    assert await count(h, "signals") == 0


async def test_an_id_with_its_own_tenant_is_found(make_harness: MakeHarness) -> None:
    h = await make_harness([Waiter])
    handle = await acme(h)

    found = await h.engine.get(handle.id, tenant="acme")
    waited = await h.engine.wait(handle.id, until="settled", timeout=30, tenant="acme")
    await h.engine.signal(handle.id, "go", tenant="acme")
    was_cancelled = await h.engine.cancel(handle.id, tenant="acme")

    assert (found.tenant, waited.id, was_cancelled) == ("acme", handle.id, True)
    assert await count(h, "signals") == 1


async def test_an_id_without_a_tenant_is_found_by_an_engine_of_any_tenant(make_harness: MakeHarness) -> None:
    h = await make_harness([Waiter], tenant="globex")
    handle = await acme(h)

    found = await h.engine.get(handle.id)
    await h.engine.signal(handle.id, "go")
    await h.engine.signal_many([(handle.id, "go"), (handle.id, "go", None, "e7")])

    assert (found.tenant, await handle.cancel()) == ("acme", True)
    assert await count(h, "signals") == 3


async def test_a_tenant_that_is_not_a_string_is_refused_with_an_id(make_harness: MakeHarness) -> None:
    h = await make_harness([Waiter])
    handle = await acme(h)

    no_text: Any = 7
    for call in (h.engine.get, h.engine.wait, h.engine.cancel, h.engine.retry):
        with pytest.raises(InvalidInput, match="tenant"):
            await call(handle.id, tenant=no_text)
