"""Rule 25: what the database cannot hold is refused, at the exact bounds of the range."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from stepwell import InvalidInput
from stepwell._core.validation import (
    check_at,
    check_concurrency_key,
    check_delay,
    check_key,
    check_priority,
    check_queue,
    check_tenant,
    check_text,
)

EAST, WEST = timezone(timedelta(hours=14)), timezone(timedelta(hours=-12))


@pytest.mark.parametrize("delay", [timedelta(0), timedelta(microseconds=1), timedelta(days=36_500)])
def test_a_delay_within_range_passes(delay: timedelta) -> None:
    assert check_delay("delay", delay) == delay


@pytest.mark.parametrize("delay", [timedelta(microseconds=-1), timedelta(days=36_501), timedelta.max, 1, None, "1"])
def test_a_delay_out_of_range_is_refused(delay: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^delay: "):
        check_delay("delay", delay)


@pytest.mark.parametrize("priority", [-32_768, 0, 32_767])
def test_a_priority_within_range_passes(priority: int) -> None:
    assert check_priority(priority) == priority


@pytest.mark.parametrize("priority", [-32_769, 32_768, True, 1.0, "1", None])
def test_a_priority_out_of_range_is_refused(priority: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^priority: "):
        check_priority(priority)


@pytest.mark.parametrize(
    "at",
    [datetime(9_000, 1, 1, tzinfo=WEST), datetime(9_000, 12, 31, 23, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC),
     datetime(1, 1, 1, tzinfo=WEST)],
)  # fmt: skip
def test_a_time_with_a_zone_passes(at: datetime) -> None:
    assert check_at("at", at) == at


@pytest.mark.parametrize(
    "at",
    [datetime(2030, 1, 1), datetime(9_001, 1, 1, tzinfo=UTC), "2030-01-01", 5, None,  # noqa: DTZ001 - naive on purpose
     datetime(9_000, 12, 31, 12, tzinfo=WEST), datetime(1, 1, 1, tzinfo=EAST), datetime.max.replace(tzinfo=WEST)],
)  # fmt: skip
def test_a_time_that_is_naive_or_out_of_range_is_refused(at: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^at: "):
        check_at("at", at)


@pytest.mark.parametrize("name", ["q", "a b", "größe", "x" * 200])
def test_a_printable_queue_name_passes(name: str) -> None:
    assert check_queue(name) == name


@pytest.mark.parametrize("name", ["", "x" * 201, "a\x00b", "a\nb", 5, None])
def test_a_queue_name_out_of_range_is_refused(name: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^queue: "):
        check_queue(name)


@pytest.mark.parametrize("key", ["", "x" * 201, "a\x00b", "\ud800", 5])
def test_a_key_out_of_range_is_refused_under_its_own_name(key: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^key: "):
        check_key("key", key)
    with pytest.raises(InvalidInput, match=r"^concurrency_key: "):
        check_concurrency_key(key)


def test_a_missing_concurrency_key_is_none() -> None:
    assert check_concurrency_key(None) is None
    assert check_concurrency_key("größe") == "größe"


def test_an_empty_tenant_is_a_tenant() -> None:
    assert check_tenant("") == ""


@pytest.mark.parametrize("tenant", ["x" * 201, "a\x00b", None, 5])
def test_a_tenant_out_of_range_is_refused(tenant: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^tenant: "):
        check_tenant(tenant)


def test_text_that_postgres_cannot_hold_is_refused_with_a_message() -> None:
    with pytest.raises(InvalidInput, match="NUL"):
        check_text("name", "a\x00")
    with pytest.raises(InvalidInput, match="lone surrogate"):
        check_text("name", "\udfff")
