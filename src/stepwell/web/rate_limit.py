"""How many requests one client may send in a time; counted in memory, and in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import IPv6Address, ip_address
from time import monotonic

from stepwell.errors import InvalidInput

MOST_CLIENTS = 10_000


@dataclass(frozen=True, slots=True)
class Rate:
    """`Rate(100)`: a hundred requests a second of each client, in each process; `burst` at once, by default as many."""

    n: int
    per: timedelta = timedelta(seconds=1)
    burst: int | None = None

    def __post_init__(self) -> None:
        for field, value in (("n", self.n), ("burst", self.burst)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InvalidInput(field, f"expected a whole number from 1, got {value!r}")
        if not isinstance(self.per, timedelta) or self.per <= timedelta(0):
            raise InvalidInput("per", f"expected a timedelta above 0, got {self.per!r}")


class Throttle:
    """A bucket of tokens for each client. Beyond `most` clients, the one with the oldest request is forgotten."""

    def __init__(self, rate: Rate, *, clock: Callable[[], float] = monotonic, most: int = MOST_CLIENTS) -> None:
        self._burst = float(rate.n if rate.burst is None else rate.burst)
        self._fill = rate.n / rate.per.total_seconds()  # tokens per second
        self._clock = clock
        self._most = most
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # client: tokens, and when counted

    def take(self, client: str) -> float:
        """Take a token for one request of a client: 0. Or the seconds until the next one is allowed."""
        now = self._clock()
        before, since = self._buckets.pop(client, (self._burst, now))
        tokens = min(self._burst, before + (now - since) * self._fill)
        passes = tokens >= 1
        self._buckets[client] = (tokens - 1 if passes else tokens, now)
        if len(self._buckets) > self._most:
            self._buckets.popitem(last=False)
        return 0.0 if passes else (1 - tokens) / self._fill


def name_address(address: str) -> str:
    """The client of an address: an IPv4 address, or the /64 of an IPv6 address, which one host may own as a whole."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address  # a socket of another kind
    if not isinstance(parsed, IPv6Address):
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{IPv6Address(int(parsed) >> 64 << 64)}/64"
