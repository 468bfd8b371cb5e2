"""The parts of the HTTP API by themselves: which callers are known, and how often one may call."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepwell import InvalidInput
from stepwell.web import BearerToken, Rate
from stepwell.web.bearers import Bearers
from stepwell.web.rate_limit import Throttle, name_address

SECRET = "s" * 32
OTHER = "o" * 32


class Clock:
    """Seconds, moved by the test."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_caller_is_known_by_its_secret_and_the_secret_is_not_stored() -> None:
    ana, bob = BearerToken(SECRET, scopes={"read"}, actor="ana"), BearerToken(OTHER, scopes={"complete"}, tenant="acme")
    bearers = Bearers([ana, bob])

    assert bearers.find(SECRET) is ana
    assert bearers.find(OTHER) is bob
    assert [bearers.find(wrong) for wrong in ("", "s" * 31, "s" * 33, f"{SECRET} ", "\ud800")] == [None] * 5
    assert SECRET not in repr(ana) + str(vars(type(ana))) + "".join(str(getattr(ana, name)) for name in ana.__slots__)


@pytest.mark.parametrize(
    ("secret", "options", "problem"),
    [
        ("s" * 31, {"scopes": {"read"}}, "^secret: has 31 characters"),
        ("", {"scopes": {"read"}}, "^secret: has 0"),
        (None, {"scopes": {"read"}}, "^secret: expected a string"),
        (f"{SECRET} x", {"scopes": {"read"}}, "^secret: has a character"),
        (f"{SECRET}\n", {"scopes": {"read"}}, "^secret: has a character"),
        ("ü" * 40, {"scopes": {"read"}}, "^secret: has a character"),
        (SECRET, {"scopes": set()}, "^scopes: is empty"),
        (SECRET, {"scopes": "read"}, "^scopes: expected a set"),
        (SECRET, {"scopes": {"compete"}}, "^scopes: there is no scope 'compete'"),
        (SECRET, {"scopes": [["read"]]}, "^scopes: there is no scope"),
        (SECRET, {"scopes": None}, "^scopes: expected a set"),
        (SECRET, {"scopes": {"read"}, "tenant": 5}, "^tenant: "),
        (SECRET, {"scopes": {"read"}, "tenant": "a\x00"}, "^tenant: "),
        (SECRET, {"scopes": {"read"}, "actor": ""}, "^actor: is empty"),
    ],
)
def test_an_invalid_bearer_token_is_refused_with_the_field(
    secret: Any, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidInput, match=problem):
        BearerToken(secret, **options)


def test_one_secret_belongs_to_one_caller() -> None:
    with pytest.raises(InvalidInput, match=r"^tokens: two of them"):
        Bearers([BearerToken(SECRET, scopes={"read"}), BearerToken(SECRET, scopes={"complete"})])
    with pytest.raises(InvalidInput, match=r"^tokens: expected a list of BearerToken, got str"):
        Bearers([SECRET])  # type: ignore[list-item]


def test_a_client_has_its_burst_and_then_its_rate_and_the_others_have_theirs() -> None:
    clock = Clock()
    throttle = Throttle(Rate(2, per=timedelta(seconds=1), burst=3), clock=clock)

    at_once = [throttle.take("ana") for _ in range(4)]
    other = throttle.take("bob")
    clock.now += 0.5
    later = [throttle.take("ana") for _ in range(2)]
    clock.now += 3_600
    rested = [throttle.take("ana") for _ in range(4)]

    assert at_once == [0, 0, 0, 0.5]
    assert other == 0
    assert later == [0, 0.5]
    assert rested == [0, 0, 0, 0.5]


def test_refused_requests_do_not_make_the_wait_longer() -> None:
    clock = Clock()
    throttle = Throttle(Rate(1), clock=clock)

    waits = [throttle.take("ana") for _ in range(1_000)]

    assert waits == [0, *[1.0] * 999]


def test_the_memory_of_clients_is_bounded_and_forgets_the_least_recent() -> None:
    clock = Clock()
    throttle = Throttle(Rate(1, per=timedelta(hours=1)), clock=clock, most=100)

    throttle.take("ana")
    for number in range(99):
        throttle.take(str(number))
    known = throttle.take("ana")
    for number in range(1_000):
        throttle.take(f"flood {number}")

    assert known > 0
    assert len(throttle._buckets) == 100
    assert throttle.take("ana") == 0


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
        ("", ""),
    ],
)
def test_addresses_of_one_host_are_one_client(address: str, client: str) -> None:
    assert name_address(address) == client


@pytest.mark.parametrize("options", [{"n": 0}, {"n": True}, {"n": 1.5}, {"n": 1, "burst": 0}, {"n": 1, "per": 1},
                                     {"n": 1, "per": timedelta(0)}])  # fmt: skip
def test_a_rate_that_admits_no_request_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Rate(**options)
