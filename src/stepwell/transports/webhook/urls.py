"""URLs a request may have: http or https, a host, nothing that would be sent or kept by mistake."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit, urlunsplit

_PORTS = {"http": 80, "https": 443}
_HIGHEST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Target:
    """A checked URL."""

    url: str
    scheme: str
    host: str
    port: int

    @property
    def is_secure(self) -> bool:
        return self.scheme == "https"

    @property
    def origin(self) -> tuple[str, str, int]:
        """Equal for two URLs of the same server."""
        return self.scheme, self.host, self.port

    @property
    def shown(self) -> str:
        """The URL for records and logs, without its query, which often carries a key."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))

    def joined(self, location: str) -> Target:
        """The target of a redirect; ValueError if it is not a URL for a request."""
        return read_target(urljoin(self.url, location))


def read_target(url: object) -> Target:
    """Check a URL; ValueError says what is wrong with it."""
    parts = _split(url)
    if parts.scheme not in _PORTS:
        raise ValueError(f"expected https://…, got {_shown(url)}")
    if not parts.hostname:
        raise ValueError(f"{_shown(url)} has no host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a name or password in the URL would be kept with every interaction; send it in headers=")
    if parts.fragment:
        raise ValueError("the part after # is never sent; remove it")
    _check_host(parts.hostname)
    return Target(str(url), parts.scheme, plain_host(parts.hostname), _port(parts))


def plain_host(host: str) -> str:
    """A host's name for comparisons: lower case, without the root's dot and without brackets."""
    return host.strip("[]").lower().removesuffix(".")


def is_address(host: str) -> bool:
    """An IP address in its common form, not a name."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def _split(url: object) -> SplitResult:
    if not isinstance(url, str) or not url:
        raise ValueError(f"expected a URL, got {_shown(url)}")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"{_shown(url)} has blanks or is not ASCII: write such characters as %xx, a host as xn--…")
    return urlsplit(url)


def _check_host(host: str) -> None:
    """127.1, 0x7f.1 and 2130706433 are addresses for the system and names for a reader."""
    if is_address(host):
        return
    try:
        socket.inet_aton(host)
    except OSError:
        return
    raise ValueError(f"{host} is an address in disguise; write it in four parts")


def _port(parts: SplitResult) -> int:
    port = parts.port  # raises ValueError if it is not a number
    if port is None:
        return _PORTS[parts.scheme]
    if not 1 <= port <= _HIGHEST_PORT:
        raise ValueError(f"{port} is not a port")
    return port


def _shown(url: object) -> str:
    return repr(url.partition("?")[0] if isinstance(url, str) else url)[:200]
