"""The webhook: each interaction is a signed POST, with the address for the completion."""

from __future__ import annotations

import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from stepwell._core.interaction import Dispatch
from stepwell.errors import DefinitionError, MissingExtra, SendFailed, Undeliverable
from stepwell.transports.base import Transport, outlasting
from stepwell.transports.webhook.addresses import AddressGuard, AllowPrivate, BlockedAddress
from stepwell.transports.webhook.headers import read_headers, read_retry_after
from stepwell.transports.webhook.signatures import SIGNATURE_HEADER, Secrets, read_secrets, sign
from stepwell.transports.webhook.urls import Target, is_address, read_target

if TYPE_CHECKING:
    from stepwell.transports.webhook.http import Poster, Response

T = TypeVar("T")

GONE: Final = 410
KEEPS_METHOD: Final = frozenset({307, 308})  # the others would turn a POST into a GET
MOST_HOPS: Final = 5
LONGEST_TIMEOUT: Final = timedelta(minutes=10)
LONGEST_RETRY_AFTER: Final = timedelta(hours=1)


class Webhook(Transport):
    """Asks by HTTP: `Webhook("payments", url="https://…", callback="https://…/interactions/complete", secret=…)`.

    2xx is success; 410, an address that is not allowed, and a redirect to one fail the interaction; all else is tried
    again. The completion comes later, to `callback`. `secret=None` sends without a signature. Needs the extra
    "webhook".
    """

    def __init__(
        self,
        name: str,
        *,
        url: str,
        secret: Secrets | None,
        callback: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: timedelta = timedelta(seconds=30),
        allow_private: AllowPrivate = False,
        follow_redirects: bool = False,
        max_in_flight: int = 50,
        tls: ssl.SSLContext | None = None,
        resolver: Callable[[str, int], Awaitable[Sequence[str]]] | None = None,
    ) -> None:
        self.name = name
        self._posting = _import_posting()
        self._guard = self._read("allow_private", AddressGuard, allow_private)
        self._target = self._read("url", self._read_url, url)
        self._callback = None if callback is None else self._read("callback", read_target, callback).url
        self._secrets = () if secret is None else self._read("secret", read_secrets, secret)
        self._headers = self._read("headers", read_headers, headers or {})
        self._timeout = self._read("timeout", _read_timeout, timeout)
        self.max_in_flight = self._read("max_in_flight", _read_most, max_in_flight)
        self._follows = follow_redirects
        self.send_timeout = outlasting(timeout * (MOST_HOPS + 1 if follow_redirects else 1))
        self._tls = tls
        self._resolver = resolver or self._posting.resolve
        self._poster: Poster | None = None

    async def open(self) -> None:
        if self._poster is None:
            self._poster = self._posting.Poster(
                self._guard, resolver=self._resolver, tls=self._tls, most=self.max_in_flight,
                timeout=self._timeout,
            )  # fmt: skip

    async def close(self) -> None:
        poster, self._poster = self._poster, None
        if poster is not None:
            await poster.close()

    async def send(self, dispatch: Dispatch, /) -> Mapping[str, Any]:
        poster = self._poster
        if poster is None:
            raise SendFailed("the transport is closed")
        body = msgspec.json.encode(self._document(dispatch))
        target = self._target
        for _ in range(MOST_HOPS + 1):
            response = await poster.post(target, self._signed(dispatch, body, target), body)
            if not self._is_redirect(response):
                return self._judge(dispatch, target, response)
            target = self._next(target, response)
        raise SendFailed(f"{self._target.shown}: more than {MOST_HOPS} redirects")

    def _document(self, dispatch: Dispatch) -> dict[str, Any]:
        document = dispatch.envelope()
        if self._callback is not None:
            document["callback"] = {"completionUrl": self._callback}
        return document

    def _signed(self, dispatch: Dispatch, body: bytes, target: Target) -> dict[str, str]:
        """Each hop is signed with its own time. An author's headers may be keys: they are only sent to their origin."""
        headers = self._headers if target.origin == self._target.origin else {}
        signature = {SIGNATURE_HEADER: sign(body, self._secrets, int(time.time()))} if self._secrets else {}
        return {
            "User-Agent": "stepwell", **headers, "Content-Type": "application/json", "Accept-Encoding": "identity",
            "Stepwell-Interaction-Id": dispatch.interaction_id, "Stepwell-Attempt": str(dispatch.attempt), **signature,
        }  # fmt: skip

    def _is_redirect(self, response: Response) -> bool:
        return self._follows and response.status in KEEPS_METHOD and response.location is not None

    def _next(self, target: Target, response: Response) -> Target:
        try:
            following = target.joined(response.location or "")
        except ValueError as error:
            raise SendFailed(f"{target.shown} redirects to an invalid URL: {error}") from error
        if target.is_secure and not following.is_secure:
            raise Undeliverable(f"{target.shown} redirects to {following.shown}: not followed from https to http")
        return following

    def _judge(self, dispatch: Dispatch, target: Target, response: Response) -> Mapping[str, Any]:
        if 200 <= response.status < 300:  # noqa: PLR2004 - the range is the name
            return {"url": target.shown, "statusCode": response.status}
        problem = f"{target.shown} answered {response.status}" + (f": {response.excerpt}" if response.excerpt else "")
        if response.status == GONE:
            raise Undeliverable(problem)
        raise SendFailed(problem, self._wait(dispatch, response))

    def _wait(self, dispatch: Dispatch, response: Response) -> timedelta | None:
        """The time that the server asks for; not less than our own backoff, and bounded."""
        asked = read_retry_after(response.retry_after)
        return None if asked is None else min(max(asked, self.backoff(dispatch.attempt)), LONGEST_RETRY_AFTER)

    def _read_url(self, url: object) -> Target:
        target = read_target(url)
        if not target.is_secure and not self._guard.is_open_inside:
            raise ValueError("http shows payload and token to any listener: use https, or name your own network in "
                             "allow_private")  # fmt: skip
        if is_address(target.host):
            self._guard.check(target.host, [target.host])
        return target

    def _read(self, field: str, read: Callable[[Any], T], value: object) -> T:
        try:
            return read(value)
        except (ValueError, TypeError, BlockedAddress) as error:
            raise DefinitionError(f"Webhook({self.name!r}): {field}: {error}") from error


def _import_posting() -> ModuleType:
    try:
        return import_module("stepwell.transports.webhook.http")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("stepwell"):
            raise
        raise MissingExtra("webhook", "Webhook") from error


def _read_timeout(timeout: object) -> float:
    if not isinstance(timeout, timedelta) or not timedelta(0) < timeout <= LONGEST_TIMEOUT:
        raise ValueError(f"expected a timedelta above 0, at most {LONGEST_TIMEOUT}, got {timeout!r}")
    return timeout.total_seconds()


def _read_most(most: object) -> int:
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise ValueError(f"expected a whole number from 1 on, got {most!r}")
    return most
