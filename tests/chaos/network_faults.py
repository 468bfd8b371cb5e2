"""The faults that befall the connections of workers and clients, one class each."""

from __future__ import annotations

from typing import ClassVar

from tests.chaos import limits
from tests.chaos.faults import Fault, NotNow, Site
from tests.chaos.proxy import Proxy
from tests.chaos.replicas import REPLICATION

NO_LINK = "there was no connection"


class Network(Fault):
    """Befalls the proxies of the clients and of all workers, or of one worker."""

    of_all: ClassVar[bool] = True

    def proxies(self, site: Site) -> list[Proxy]:
        if not self.of_all:
            return [site.some_place().proxy]
        return [proxy for proxy in site.proxies.all() if proxy.name != REPLICATION]


class Dark(Network):
    """Existing connections go dark; new ones work at once."""

    at_most = limits.LIT
    name, counts_from = "dark", "begin"

    async def begin(self, site: Site) -> None:
        self._proxies = self.proxies(site)
        if not sum(proxy.go_dark() for proxy in self._proxies):
            raise NotNow(NO_LINK)

    async def tidy(self, site: Site) -> None:
        for proxy in self._proxies:
            proxy.end_dark()


class DarkWorker(Dark):
    """The existing connections of one worker go dark."""

    name, of_all = "dark-worker", False


class Unreachable(Network):
    """One worker reaches the server no more for some seconds: its links go dark, and new ones are refused."""

    at_most = limits.BURIED
    name, of_all, seconds, counts_from = "unreachable", False, (8.0, 12.0), "begin"

    async def begin(self, site: Site) -> None:
        self._proxies = self.proxies(site)
        for proxy in self._proxies:
            proxy.refuses = True
            if not proxy.go_dark():
                proxy.refuses = False
                raise NotNow(NO_LINK)

    async def end(self, site: Site) -> None:
        for proxy in self._proxies:
            proxy.refuses = False

    async def tidy(self, site: Site) -> None:
        for proxy in self._proxies:
            proxy.end_dark()


class Harm(Network):
    """Harms whatever passes for some seconds; it came only if anything did."""

    seconds: ClassVar[tuple[float, float]]

    def set(self, proxy: Proxy, *, on: bool) -> None:
        raise NotImplementedError

    async def begin(self, site: Site) -> None:
        self._harmed = sum(proxy.harmed for proxy in self.proxies(site))
        for proxy in self.proxies(site):
            self.set(proxy, on=True)

    async def end(self, site: Site) -> None:
        for proxy in self.proxies(site):
            self.set(proxy, on=False)
        if sum(proxy.harmed for proxy in self.proxies(site)) == self._harmed:
            raise NotNow("nothing passed the connections")


class Delay(Harm):
    """Whatever is sent takes up to a fifth of a second in each direction."""

    at_most = limits.CONNECTED
    name, seconds = "delay", (4.0, 8.0)

    def set(self, proxy: Proxy, *, on: bool) -> None:
        proxy.delays = (0.02, 0.2) if on else None


class Truncate(Harm):
    """Each connection is cut after some bytes, in the middle of a message."""

    at_most = limits.CONNECTED
    name, seconds = "truncate", (3.0, 6.0)

    def set(self, proxy: Proxy, *, on: bool) -> None:
        proxy.truncates = on


class HalfClose(Network):
    """One direction of each connection is closed."""

    at_most = limits.CONNECTED
    name, counts_from = "half-close", "begin"

    async def begin(self, site: Site) -> None:
        if not sum(proxy.half_close() for proxy in self.proxies(site)):
            raise NotNow(NO_LINK)
