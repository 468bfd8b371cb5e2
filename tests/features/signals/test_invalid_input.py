"""Rules 15, 18 and 25: bad input is refused by the name of its field, and nothing is stored."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from stepwell import InvalidInput, InvalidPayload, PayloadTooLarge, Status
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.features.signals.looks import count
from tests.features.signals.machines import Waiter

TEXTS: list[Any] = ["", "x" * 201, "a\x00b", "\ud800", 5, b"a", ["a"], True]


async def assert_nothing_stored(h: Harness, instances: int = 0) -> None:
    assert (await count(h, "instances"), await count(h, "signals")) == (instances, 0)


async def test_rule_25_a_key_that_is_empty_too_long_or_not_a_string_is_refused(make_harness: MakeHarness) -> None:
    """Rules 18 and 25: empty, over-long, NUL, a lone surrogate, other types: refused as `key`."""
    h = await make_harness([Waiter])

    for key in TEXTS:
        for scope in ("live", "forever", None):
            with pytest.raises(InvalidInput) as caught:
                await h.engine.start(Waiter, key=key, key_scope=scope)
            assert caught.value.field == "key"

    await assert_nothing_stored(h)


async def test_rule_25_a_key_of_the_greatest_length_is_accepted(make_harness: MakeHarness) -> None:
    """Rule 18: 200 characters are allowed, of whatever width."""
    h = await make_harness([Waiter])
    key = "\U0001f600" * 200

    waiter = await h.engine.start(Waiter, key=key)
    await h.engine.signal(key, key, dedup_key=key)

    assert (await waiter.get()).key == key


async def test_rule_25_a_signals_name_and_dedup_key_are_checked(make_harness: MakeHarness) -> None:
    """Rules 14 and 25: refused as `name` and as `dedup_key`; the target gets nothing."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)

    for text in TEXTS:
        with pytest.raises(InvalidInput) as caught:
            await waiter.signal(text)
        assert caught.value.field == "name"
        with pytest.raises(InvalidInput) as caught:
            await waiter.signal("go", dedup_key=text)
        assert caught.value.field == "dedup_key"
    with pytest.raises(InvalidInput, match="name: expected a string, got None"):
        await waiter.signal(None)  # type: ignore[arg-type]

    await assert_nothing_stored(h, instances=1)


UNFIT: list[Any] = [
    float("nan"), float("inf"), -float("inf"), {"deep": [float("nan")]}, "a\x00", {"a\x00": 1}, "\ud800",
    object(), iter([1]), lambda: None, datetime(2026, 1, 1),  # noqa: DTZ001 - naive on purpose
]  # fmt: skip


async def test_rule_16_a_payload_that_json_cannot_hold_is_refused(make_harness: MakeHarness) -> None:
    """Rule 16: NaN, infinity, NUL, lone surrogates, naive datetimes, objects: refused with the place."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)

    for payload in UNFIT:
        with pytest.raises(InvalidInput) as caught:
            await waiter.signal("go", payload)
        assert caught.value.field.startswith("payload")

    await assert_nothing_stored(h, instances=1)


async def test_rule_16_a_payload_over_max_payload_is_refused_with_its_size(make_harness: MakeHarness) -> None:
    """Rule 16: the limit is in bytes of JSON; what just fits is taken."""
    h = await make_harness([Waiter], max_payload=1_024)
    waiter = await h.engine.start(Waiter)

    with pytest.raises(PayloadTooLarge) as caught:
        await waiter.signal("go", "ü" * 600)
    await waiter.signal("go", "x" * 1_022)

    assert (caught.value.field, caught.value.size, caught.value.limit) == ("payload", 1_202, 1_024)
    assert await count(h, "signals") == 1


async def test_rule_16_an_integer_of_many_digits_is_refused_before_postgres_does(make_harness: MakeHarness) -> None:
    """Rule 16: the engine refuses what jsonb cannot hold, with the field."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)

    with pytest.raises(InvalidPayload) as caught:
        await waiter.signal("go", 10**5_000)

    assert caught.value.field == "payload"
    await assert_nothing_stored(h, instances=1)


async def test_rule_25_tenants_are_checked_by_every_call(make_harness: MakeHarness) -> None:
    """Rule 18: a tenant is text of at most 200 characters; the empty one is the default."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter, key="order:42")

    for tenant in ("x" * 201, "a\x00", 5, b"a", "\ud800"):
        calls: list[Any] = [
            lambda t=tenant: h.engine.start(Waiter, tenant=t),
            lambda t=tenant: h.engine.signal("order:42", "go", tenant=t),
            lambda t=tenant: h.engine.get("order:42", tenant=t),
            lambda t=tenant: h.engine.wait("order:42", tenant=t),
            lambda t=tenant: h.engine.cancel("order:42", tenant=t),
            lambda t=tenant: h.engine.retry("order:42", tenant=t),
            lambda t=tenant: h.engine.restart("order:42", step="wait", tenant=t),
        ]
        for call in calls:
            with pytest.raises(InvalidInput) as caught:
                await call()
            assert caught.value.field == "tenant"

    assert (await waiter.get()).status is Status.RUNNABLE
    await assert_nothing_stored(h, instances=1)


@pytest.mark.parametrize(("field", "value"), [("if_exists", "replace"), ("if_exists", None), ("until", "done")])
async def test_rule_25_an_invalid_choice_is_refused(make_harness: MakeHarness, field: str, value: Any) -> None:
    """Rules 19 and 25: if_exists is "raise" or "return"; until is "terminal" or "settled"."""
    h = await make_harness([Waiter])
    waiter = await h.engine.start(Waiter)
    call = waiter.wait(until=value) if field == "until" else h.engine.start(Waiter, key="a", if_exists=value)

    with pytest.raises(InvalidInput) as caught:
        await call

    assert caught.value.field == field
    await assert_nothing_stored(h, instances=1)
