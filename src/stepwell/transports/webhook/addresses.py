"""Which network addresses a request may go to: public ones, and those that were allowed by name."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, TypeAlias

from stepwell.transports.webhook.urls import plain_host

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network
AllowPrivate: TypeAlias = bool | str | Iterable[str]
"""False: public addresses only. True: private ones too. Or those networks ("10.0.0.0/8") and hosts ("pay.internal")."""


class Kind(StrEnum):
    """The purpose of an address."""

    PUBLIC = "public"
    LOOPBACK = "loopback"
    PRIVATE = "private"
    SHARED = "carrier-grade NAT"
    LINK_LOCAL = "link-local"
    METADATA = "cloud metadata"
    MULTICAST = "multicast"
    RESERVED = "reserved"

    @property
    def is_inside(self) -> bool:
        """The address may be one of an ordinary server in a company's own network."""
        return self in {Kind.LOOPBACK, Kind.PRIVATE, Kind.SHARED}


# Our own table, after IANA's registries of special-purpose addresses: what `ipaddress` calls private differs between
# patch releases of Python. The first network that holds an address decides. All services of an EC2 instance are in
# fd00:ec2::/32: credentials at ::254 and ::23, DNS, time. The other IPv6 addresses are those of Google, Oracle,
# Scaleway, Akamai and Alibaba.
_KINDS: Final[tuple[tuple[Network, Kind], ...]] = tuple(
    (ipaddress.ip_network(network), kind)
    for kind, networks in (
        (Kind.METADATA, ("169.254.169.254/32", "169.254.170.2/32", "169.254.170.23/32", "168.63.129.16/32",
                         "100.100.100.200/32", "192.0.0.192/32", "fd00:ec2::/32", "fd20:ce::254/128",
                         "fd00:c1::a9fe:a9fe/128", "fd00:42::42/128", "fd00:a9fe:a9fe::1/128",
                         "fd00:100::100:200/128")),
        (Kind.LOOPBACK, ("127.0.0.0/8", "::1/128")),
        (Kind.PRIVATE, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10", "64:ff9b:1::/48")),
        (Kind.SHARED, ("100.64.0.0/10",)),
        (Kind.LINK_LOCAL, ("169.254.0.0/16", "fe80::/10")),
        (Kind.MULTICAST, ("224.0.0.0/4", "ff00::/8")),
        (Kind.RESERVED, ("0.0.0.0/8", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15",
                         "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4", "2001::/23", "2001:db8::/32",
                         "3fff::/20")),
        (Kind.PUBLIC, ("0.0.0.0/0", "2000::/3")),
        (Kind.RESERVED, ("::/0",)),
    )
    for network in networks
)  # fmt: skip

_NAT64: Final = IPv6Network("64:ff9b::/96")
_LOCAL_NAT64: Final = IPv6Network("64:ff9b:1::/48")
_COMPATIBLE: Final = IPv6Network("::/96")
_LOW_32_BITS: Final = 0xFFFF_FFFF


class BlockedAddress(OSError):
    """A host has an address to which nothing is sent. An OSError, because it is raised where connecting fails."""

    def __init__(self, host: str, address: str, kind: Kind) -> None:
        named = address if host == address else f"{host} ({address})"
        super().__init__(
            f"nothing is sent to {named}: a {kind} address; if intended, name its network or host in allow_private"
        )
        self.host = host
        self.address = address
        self.kind = kind


class AddressGuard:
    """Says of each address whether a request may go there."""

    def __init__(self, allow_private: AllowPrivate = False) -> None:
        listed = [] if isinstance(allow_private, bool) else _listed(allow_private)
        self._allows_inside = allow_private is True
        self._networks = [network for network in map(_network, listed) if network is not None]
        self._hosts = frozenset(plain_host(name) for name in listed if _network(name) is None)

    @property
    def is_open_inside(self) -> bool:
        """Whether other than public addresses are allowed."""
        return self._allows_inside or bool(self._networks or self._hosts)

    def check(self, host: str, addresses: Iterable[str]) -> None:
        """Raise BlockedAddress if any of a host's addresses is not allowed: any of several may be chosen."""
        for text in addresses:
            address = _unmapped(ipaddress.ip_address(text.partition("%")[0]))
            kind = kind_of(address)
            if not self._allows(plain_host(host), address, kind):
                raise BlockedAddress(host, text, kind)

    def _allows(self, host: str, address: Address, kind: Kind) -> bool:
        if kind is Kind.PUBLIC or any(address in network for network in self._networks):
            return True
        return kind.is_inside and (self._allows_inside or host in self._hosts)


def kind_of(address: Address) -> Kind:
    """The purpose of an address; one that embeds an IPv4 address is at most as public as that."""
    address = _unmapped(address)
    inner = _carried(address)
    if inner is not None:
        return kind_of(inner)
    if address in _LOCAL_NAT64:
        # How many bits the prefix of this gateway has is not known, so an address may carry any of these.
        kinds = {kind_of(one) for one in _carried_locally(int(address))}
        return next((kind for kind in (Kind.METADATA, Kind.LINK_LOCAL) if kind in kinds), Kind.PRIVATE)
    return next(kind for network, kind in _KINDS if address in network)


def _unmapped(address: Address) -> Address:
    """An IPv4-mapped address as that IPv4 address: the system connects to it."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped


def _carried(address: Address) -> IPv4Address | None:
    """The IPv4 address to which a gateway would forward it: of NAT64, 6to4, and the old compatible form."""
    if isinstance(address, IPv4Address):
        return None
    is_compatible = address in _COMPATIBLE and int(address) > 1  # not :: and ::1
    if address in _NAT64 or is_compatible:
        return IPv4Address(int(address) & _LOW_32_BITS)
    return address.sixtofour


def _carried_locally(number: int) -> list[IPv4Address]:
    """The IPv4 addresses in an IPv6 address behind a prefix of 48, 56, 64 or 96 bits (RFC 6052); bits 64 to 71 are
    none of theirs.
    """
    packed = number >> 64 << 56 | number & (1 << 56) - 1
    return [IPv4Address(one & _LOW_32_BITS) for one in (packed >> 40, packed >> 32, packed >> 24, number)]


def _listed(allowed: str | Iterable[str]) -> list[str]:
    names = [allowed] if isinstance(allowed, str) else list(allowed)
    for name in names:
        if not isinstance(name, str) or not name.strip() or (_network(name) is None and "/" in name):
            raise ValueError(f"{name!r} is neither a network (10.0.0.0/8), an address nor a host's name")
    return names


def _network(name: str) -> Network | None:
    try:
        return ipaddress.ip_network(name.strip("[]"))
    except ValueError:
        return None
