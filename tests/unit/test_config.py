"""Settings: from keywords and the environment, checked where the engine is made."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from itertools import combinations, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell import SettingError
from stepwell.config import DURATIONS, NUMBERS, Settings, load_settings, parse_queues


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def test_defaults_apply_without_any_setting() -> None:
    settings = load_settings({}, {})

    assert settings == Settings()
    assert settings.queues == {"default": 50}
    assert (settings.lease, settings.heartbeat, settings.max_crashes) == (seconds(60), seconds(20), 10)


def test_keywords_win_over_the_environment_and_both_over_defaults() -> None:
    settings = load_settings({"poll": seconds(2)}, {"STEPWELL_POLL": "3", "STEPWELL_REAP": "7.5"})

    assert (settings.poll, settings.reap) == (seconds(2), seconds(7.5))


def test_the_environment_can_set_every_kind_of_setting() -> None:
    environ = {
        "STEPWELL_QUEUES": "default=5, mail=2", "STEPWELL_LEASE": "90", "STEPWELL_PREFETCH": "4",
        "STEPWELL_TENANT": "acme", "STEPWELL_LISTENER_DSN": "postgresql://direct/db", "STEPWELL_OTHER": "ignored",
    }  # fmt: skip

    settings = load_settings({}, environ)

    assert settings.queues == {"default": 5, "mail": 2}
    assert (settings.lease, settings.prefetch, settings.tenant) == (seconds(90), 4, "acme")
    assert settings.listener_dsn == "postgresql://direct/db"


def test_settings_from_both_sources_are_checked_together() -> None:
    settings = load_settings({"heartbeat": seconds(2)}, {"STEPWELL_LEASE": "10"})

    assert (settings.lease, settings.heartbeat) == (seconds(10), seconds(2))


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("STEPWELL_LEASE", "soon"),
        ("STEPWELL_LEASE", "nan"),
        ("STEPWELL_LEASE", "inf"),
        ("STEPWELL_PREFETCH", "1.5"),
        ("STEPWELL_QUEUES", "default"),
        ("STEPWELL_QUEUES", "default=many"),
        ("STEPWELL_QUEUES", ""),
    ],
)
def test_a_variable_that_does_not_parse_is_refused_by_name(variable: str, text: str) -> None:
    with pytest.raises(SettingError, match=f"{variable}='{text}' cannot be parsed") as caught:
        load_settings({}, {variable: text})

    assert variable == f"STEPWELL_{caught.value.setting.upper()}"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("queues", ["default"]),
        ("queues", {}),
        ("queues", {"default": 0}),
        ("queues", {"default": True}),
        ("queues", {"default": 10_001}),
        ("queues", {"": 5}),
        ("queues", {5: 5}),
        ("queues", {"a,b": 5}),
        ("fair_by", "tenant"),
        ("fair_by", {"default": "key"}),
        ("fair_by", {"default": None}),
        ("fair_by", {"": "tenant"}),
        ("fair_by", {5: "tenant"}),
        ("lease", 60),
        ("lease", timedelta(days=400)),
        ("lease", timedelta(0)),
        ("heartbeat", timedelta(milliseconds=1)),
        ("poll", None),
        ("drain_timeout", seconds(-1)),
        ("prefetch", -1),
        ("prefetch", 1.0),
        ("min_demand", 0),
        ("max_crashes", 0),
        ("max_payload", 10),
        ("max_payload", 2**40),
        ("tenant", None),
        ("tenant", "a\x00"),
        ("schema", None),
        ("schema", ""),
        ("schema", "Shop"),
        ("schema", "shop-2"),
        ("schema", "2shop"),
        ("schema", "läden"),
        ("schema", "shop\n"),
        ("schema", 'shop"; drop schema public; --'),
        ("schema", "s" * 29),
        ("schema", "user"),
        ("schema", "public"),
        ("schema", "pg_shop"),
        ("schema", "shop_client"),
        ("listener_dsn", 5),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(setting: str, value: Any) -> None:
    with pytest.raises(SettingError, match=f"^setting '{setting}'") as caught:
        load_settings({setting: value}, {})

    assert caught.value.setting == setting


def test_an_unknown_setting_is_refused_with_the_near_miss() -> None:
    with pytest.raises(SettingError, match="'heartbeet': is unknown; did you mean 'heartbeat'") as caught:
        load_settings({"heartbeet": seconds(1)}, {})

    assert caught.value.setting == "heartbeet"


def test_a_heartbeat_longer_than_a_third_of_the_lease_is_refused() -> None:
    assert load_settings({"lease": seconds(30), "heartbeat": seconds(10)}, {}).heartbeat == seconds(10)
    with pytest.raises(SettingError, match="'heartbeat': 0:00:11 is longer than a third of the lease"):
        load_settings({"lease": seconds(30), "heartbeat": seconds(11)}, {})


def test_a_longest_poll_shorter_than_a_given_poll_is_refused() -> None:
    with pytest.raises(SettingError, match="'max_poll': 0:00:05 is shorter than poll"):
        load_settings({"poll": seconds(6), "max_poll": seconds(5)}, {})


@pytest.mark.parametrize(
    ("text", "fair_by"),
    [("default=tenant", {"default": "tenant"}), ("a=tenant, b=tenant", {"a": "tenant", "b": "tenant"}), ("", {})],
)
def test_the_environment_can_make_queues_fair(text: str, fair_by: dict[str, str]) -> None:
    assert load_settings({}, {"STEPWELL_FAIR_BY": text}).fair_by == fair_by


@pytest.mark.parametrize("text", ["default", "default=", "default=customer"])
def test_a_queue_is_fair_by_tenant_only(text: str) -> None:
    with pytest.raises(SettingError, match="setting 'fair_by'"):
        load_settings({}, {"STEPWELL_FAIR_BY": text})


def milliseconds(number: int) -> timedelta:
    return timedelta(milliseconds=number)


@given(whole=st.integers(30, 31_536_000_000))
def test_every_lease_from_30_ms_on_is_accepted_alone(whole: int) -> None:
    lease = milliseconds(whole)

    settings = load_settings({"lease": lease}, {})

    assert settings.lease == lease
    assert timedelta(0) < settings.heartbeat <= lease / 3
    assert settings.reap <= lease / 2


@pytest.mark.parametrize("whole", range(1, 121))
def test_every_lease_of_whole_seconds_is_accepted_from_the_environment(whole: int) -> None:
    settings = load_settings({}, {"STEPWELL_LEASE": str(whole)})

    assert (settings.lease, settings.heartbeat) == (seconds(whole), min(seconds(20), seconds(whole) // 3))


def test_the_least_lease_is_refused_by_its_own_name() -> None:
    with pytest.raises(SettingError, match=r"^setting 'lease': 0:00:00.029000 is out of range"):
        load_settings({"lease": milliseconds(29)}, {})


@pytest.mark.parametrize(
    ("keywords", "environ", "expected"),
    [
        ({"poll": seconds(10)}, {}, (seconds(10), seconds(10))),
        ({}, {"STEPWELL_POLL": "7"}, (seconds(7), seconds(7))),
        ({"poll": seconds(2)}, {}, (seconds(2), seconds(5))),
        ({"max_poll": seconds(0.5)}, {}, (seconds(0.5), seconds(0.5))),
        ({}, {"STEPWELL_MAX_POLL": "20"}, (seconds(1), seconds(20))),
        ({"poll": seconds(7)}, {"STEPWELL_MAX_POLL": "8"}, (seconds(7), seconds(8))),
    ],
)
def test_poll_and_max_poll_adjust_each_other(
    keywords: dict[str, Any], environ: dict[str, str], expected: tuple[timedelta, timedelta]
) -> None:
    settings = load_settings(keywords, environ)

    assert (settings.poll, settings.max_poll) == expected


def test_a_worker_derives_from_what_its_engine_was_given() -> None:
    of_engine = load_settings({"lease": seconds(9)}, {})

    of_worker = of_engine.with_changes({"heartbeat": seconds(1)}).with_changes({"lease": seconds(90)})

    assert (of_engine.heartbeat, of_engine.reap) == (seconds(3), seconds(4.5))
    assert (of_worker.lease, of_worker.heartbeat, of_worker.reap) == (seconds(90), seconds(1), seconds(30))


def test_a_given_heartbeat_that_does_not_fit_a_later_lease_is_refused() -> None:
    of_engine = load_settings({"heartbeat": seconds(20)}, {})

    with pytest.raises(SettingError, match="'heartbeat': 0:00:20 is longer than a third of the lease"):
        of_engine.with_changes({"lease": seconds(10)})


@pytest.mark.parametrize("url", ["nonsense", "", "mysql://host/db"])
def test_an_invalid_listener_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(SettingError, match="listener_dsn"):
        load_settings({"listener_dsn": url}, {})
    with pytest.raises(SettingError, match="listener_dsn"):
        load_settings({}, {"STEPWELL_LISTENER_DSN": url})


def test_an_empty_listener_variable_is_refused_with_what_to_do() -> None:
    with pytest.raises(SettingError, match="unset STEPWELL_LISTENER_DSN, or give"):
        load_settings({}, {"STEPWELL_LISTENER_DSN": ""})


@pytest.mark.parametrize("text", ["a=1,a=2", "a=1, a=1"])
def test_a_queue_that_is_given_twice_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(SettingError, match="the queue 'a' is given twice"):
        load_settings({}, {"STEPWELL_QUEUES": text})
    with pytest.raises(SettingError, match="the queue 'a' is given twice"):
        parse_queues(text.split(","))
    with pytest.raises(SettingError, match="the queue 'a' is given twice"):
        load_settings({}, {"STEPWELL_FAIR_BY": "a=tenant,a=tenant"})


BOUNDS: dict[str, tuple[Any, Any]] = {**DURATIONS, **NUMBERS}
PARTNERS = {"heartbeat": "the lease", "max_poll": "poll"}  # what they have to fit; a lease follows no heartbeat


def _just_outside(bound: Any, direction: int) -> Any:
    return bound + direction * (timedelta(microseconds=1) if isinstance(bound, timedelta) else 1)


def _candidates(setting: str) -> list[tuple[Any, bool]]:
    """Values at the bounds of a setting, and whether each is inside."""
    least, most = BOUNDS[setting]
    default = getattr(Settings(), setting)
    outside = [(_just_outside(least, -1), False), (_just_outside(most, 1), False)]
    return [(least, True), (default, True), (most, True), *outside]


def _refusal(settings: dict[str, Any]) -> SettingError | None:
    try:
        loaded = load_settings(settings, {})
    except SettingError as error:
        return error
    assert {name: getattr(loaded, name) for name in settings} == settings
    return None


@pytest.mark.parametrize(("one", "other"), list(combinations(BOUNDS, 2)))
def test_every_pair_of_settings_at_bounds_is_accepted_or_refused_by_name(one: str, other: str) -> None:
    for (value, is_inside), (second, second_is_inside) in product(_candidates(one), _candidates(other)):
        refusal = _refusal({one: value, other: second})

        wrong = [name for name, inside in ((one, is_inside), (other, second_is_inside)) if not inside]
        if refusal is None or wrong:
            assert (refusal.setting in wrong) if refusal is not None else not wrong
        else:
            assert refusal.setting in (one, other)
            assert PARTNERS[refusal.setting] in refusal.problem
            assert refusal.setting == "heartbeat" or {one, other} == {"poll", "max_poll"}


@pytest.mark.parametrize("setting", BOUNDS)
def test_every_setting_at_its_bounds_is_accepted_alone_or_names_its_pair(setting: str) -> None:
    for value, is_inside in _candidates(setting):
        refusal = _refusal({setting: value})

        if refusal is None:
            assert is_inside
        else:
            assert refusal.setting == setting
            assert not is_inside or (setting == "heartbeat" and "the lease" in refusal.problem)


WITHOUT_BOUNDS: dict[str, tuple[Any, ...]] = {
    "queues": ({"default": 1}, {"a": 10_000, "b": 1}), "fair_by": ({}, {"elsewhere": "tenant"}), "retention": (False,),
    "transactional_session": ("asyncpg", "sqlalchemy"), "listener_dsn": (None, "postgresql://direct/db"),
    "tenant": ("", "acme"), "schema": ("stepwell", "a", "_shop_2", "s" * 28),
}  # fmt: skip


def test_every_setting_is_in_a_table_of_these_tests() -> None:
    assert {*BOUNDS, *WITHOUT_BOUNDS} == {one.name for one in fields(Settings)}


@pytest.mark.parametrize(("one", "other"), list(product(WITHOUT_BOUNDS, [*BOUNDS, *WITHOUT_BOUNDS])))
def test_a_setting_without_bounds_fits_every_other_setting_at_its_bounds(one: str, other: str) -> None:
    others = WITHOUT_BOUNDS.get(other) or [value for value, is_inside in _candidates(other) if is_inside]

    for value, second in product(WITHOUT_BOUNDS[one], others):
        given = {one: value, **({} if one == other else {other: second})}
        refusal = _refusal(given)

        assert refusal is None or (refusal.setting, "the lease" in refusal.problem) == ("heartbeat", True)
