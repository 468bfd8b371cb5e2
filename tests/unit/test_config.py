"""Settings: from keywords and the environment, checked where the engine is made."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepwell import SettingError
from stepwell.config import Settings, load_settings


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def test_without_any_setting_the_defaults_hold() -> None:
    settings = load_settings({}, {})

    assert settings == Settings()
    assert settings.queues == {"default": 50}
    assert (settings.lease, settings.heartbeat, settings.max_crashes) == (seconds(60), seconds(20), 10)


def test_keywords_win_over_the_environment_and_both_over_defaults() -> None:
    settings = load_settings({"poll": seconds(2)}, {"STEPWELL_POLL": "3", "STEPWELL_REAP": "7.5"})

    assert (settings.poll, settings.reap) == (seconds(2), seconds(7.5))


def test_the_environment_gives_every_kind_of_setting() -> None:
    environ = {
        "STEPWELL_QUEUES": "default=5, mail=2", "STEPWELL_LEASE": "90", "STEPWELL_PREFETCH": "4",
        "STEPWELL_TENANT": "acme", "STEPWELL_LISTENER_DSN": "postgresql://direct/db", "STEPWELL_OTHER": "ignored",
    }  # fmt: skip

    settings = load_settings({}, environ)

    assert settings.queues == {"default": 5, "mail": 2}
    assert (settings.lease, settings.prefetch, settings.tenant) == (seconds(90), 4, "acme")
    assert settings.listener_dsn == "postgresql://direct/db"


def test_settings_from_both_sources_are_judged_together() -> None:
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
    with pytest.raises(SettingError, match=f"{variable}='{text}' does not parse") as caught:
        load_settings({}, {variable: text})

    assert variable == f"STEPWELL_{caught.value.setting.upper()}"


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("queues", ["default"]),
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


def test_a_longest_poll_shorter_than_the_poll_is_refused() -> None:
    with pytest.raises(SettingError, match="'max_poll': 0:00:05 is shorter than poll"):
        load_settings({"poll": seconds(6)}, {})


@pytest.mark.parametrize(
    ("text", "fair_by"),
    [("default=tenant", {"default": "tenant"}), ("a=tenant, b=tenant", {"a": "tenant", "b": "tenant"}), ("", {})],
)
def test_the_environment_says_which_queues_are_fair(text: str, fair_by: dict[str, str]) -> None:
    assert load_settings({}, {"STEPWELL_FAIR_BY": text}).fair_by == fair_by


@pytest.mark.parametrize("text", ["default", "default=", "default=customer"])
def test_a_queue_is_fair_by_tenant_and_by_nothing_else(text: str) -> None:
    with pytest.raises(SettingError, match="setting 'fair_by'"):
        load_settings({}, {"STEPWELL_FAIR_BY": text})
