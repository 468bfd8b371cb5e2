"""Which addresses a request may go to."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from stepwell.transports.webhook.addresses import AddressGuard, BlockedAddress, Kind, kind_of

PUBLIC = ["8.8.8.8", "1.1.1.1", "192.0.1.1", "100.63.255.255", "172.32.0.1", "2606:4700::1111", "2001:4860:4860::8888"]
INSIDE = {
    "127.0.0.1": Kind.LOOPBACK, "127.255.0.9": Kind.LOOPBACK, "::1": Kind.LOOPBACK,
    "10.0.0.1": Kind.PRIVATE, "172.16.0.1": Kind.PRIVATE, "172.31.255.255": Kind.PRIVATE, "192.168.1.1": Kind.PRIVATE,
    "fd12::1": Kind.PRIVATE, "fec0::1": Kind.PRIVATE, "100.64.0.1": Kind.SHARED, "100.127.255.255": Kind.SHARED,
    "::ffff:127.0.0.1": Kind.LOOPBACK, "::ffff:10.0.0.1": Kind.PRIVATE, "::127.0.0.1": Kind.LOOPBACK,
    "64:ff9b::10.0.0.1": Kind.PRIVATE, "2002:7f00:1::": Kind.LOOPBACK, "64:ff9b:1::1": Kind.PRIVATE,
    "64:ff9b:1::10.0.0.1": Kind.PRIVATE, "fd00:c1::1": Kind.PRIVATE,
}  # fmt: skip
NEVER = {
    "169.254.169.254": Kind.METADATA, "fd00:ec2::254": Kind.METADATA, "168.63.129.16": Kind.METADATA,
    "169.254.170.23": Kind.METADATA, "fd00:ec2::23": Kind.METADATA, "fd00:ec2:0:1::1": Kind.METADATA,
    "100.100.100.200": Kind.METADATA, "::ffff:169.254.169.254": Kind.METADATA, "64:ff9b::a9fe:a9fe": Kind.METADATA,
    "fd20:ce::254": Kind.METADATA, "fd00:c1::a9fe:a9fe": Kind.METADATA, "fd00:42::42": Kind.METADATA,
    "fd00:a9fe:a9fe::1": Kind.METADATA, "fd00:100::100:200": Kind.METADATA,
    "64:ff9b:1::a9fe:a9fe": Kind.METADATA, "64:ff9b:1:a9fe:a9:fe00::": Kind.METADATA,
    "64:ff9b:1:a9:fe:a9fe::": Kind.METADATA, "64:ff9b:1:0:a9:fea9:fe00:0": Kind.METADATA,
    "64:ff9b:1::a9fe:101": Kind.LINK_LOCAL,
    "169.254.1.1": Kind.LINK_LOCAL, "fe80::1": Kind.LINK_LOCAL,
    "224.0.0.1": Kind.MULTICAST, "ff02::1": Kind.MULTICAST, "::": Kind.RESERVED, "0.0.0.0": Kind.RESERVED,  # noqa: S104 - nobody binds
    "255.255.255.255": Kind.RESERVED, "240.0.0.1": Kind.RESERVED, "192.0.2.1": Kind.RESERVED,
    "198.18.0.1": Kind.RESERVED, "2001::1": Kind.RESERVED, "2001:db8::1": Kind.RESERVED, "100::1": Kind.RESERVED,
    "4000::1": Kind.RESERVED,
}  # fmt: skip


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_allowed_by_default(address: str) -> None:
    AddressGuard().check("pay.example", [address])

    assert kind_of(ip_address(address)) is Kind.PUBLIC


@pytest.mark.parametrize(("address", "kind"), [*INSIDE.items(), *NEVER.items()])
def test_other_addresses_are_refused_by_default_with_their_kind(address: str, kind: Kind) -> None:
    with pytest.raises(BlockedAddress, match="allow_private") as refused:
        AddressGuard().check("pay.example", [address])

    assert (refused.value.kind, refused.value.address, refused.value.host) == (kind, address, "pay.example")


@pytest.mark.parametrize("address", INSIDE)
def test_allow_private_allows_private_addresses(address: str) -> None:
    AddressGuard(allow_private=True).check("pay.internal", [address])

    with pytest.raises(BlockedAddress):
        AddressGuard(allow_private=False).check("pay.internal", [address])


@pytest.mark.parametrize("address", NEVER)
def test_allow_private_still_refuses_addresses_that_no_server_has(address: str) -> None:
    with pytest.raises(BlockedAddress):
        AddressGuard(allow_private=True).check("pay.internal", [address])


@pytest.mark.parametrize(("network", "address"), [
    ("10.1.0.0/16", "10.1.2.3"), ("10.1.0.0/16", "::ffff:10.1.2.3"), ("169.254.0.0/16", "169.254.169.254"),
    ("fe80::/10", "fe80::1%eth0"), ("127.0.0.1", "127.0.0.1"), ("[::1]", "::1"),
])  # fmt: skip
def test_a_named_network_is_allowed_whatever_its_kind(network: str, address: str) -> None:
    AddressGuard(allow_private=[network]).check("pay.internal", [address])

    with pytest.raises(BlockedAddress):
        AddressGuard().check("pay.internal", [address])


def test_a_named_network_allows_no_other() -> None:
    with pytest.raises(BlockedAddress):
        AddressGuard(allow_private=["10.1.0.0/16"]).check("pay.internal", ["10.2.0.1"])


def test_a_named_host_may_be_private_and_others_may_not() -> None:
    guard = AddressGuard(allow_private=["Pay.Internal."])

    guard.check("pay.internal", ["10.0.0.1"])

    with pytest.raises(BlockedAddress):
        guard.check("other.internal", ["10.0.0.1"])
    with pytest.raises(BlockedAddress):
        guard.check("pay.internal", ["169.254.169.254"])


def test_one_blocked_address_among_many_blocks_the_host() -> None:
    with pytest.raises(BlockedAddress, match=r"pay\.example \(10\.0\.0\.1\)"):
        AddressGuard().check("pay.example", ["8.8.8.8", "10.0.0.1"])


@pytest.mark.parametrize("wrong", ["10.0.0.0/99", "10.0.0.1/8", "", " ", 7])
def test_a_value_that_is_neither_network_nor_host_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="neither a network"):
        AddressGuard(allow_private=[wrong])
