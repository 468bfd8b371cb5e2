"""Headers of requests: which an author may add, and which belong to the engine or the connection."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final

OWN_PREFIX: Final = "stepwell-"
_RESERVED: Final = frozenset({
    "accept-encoding", "connection", "content-encoding", "content-length", "content-type", "expect", "host",
    "keep-alive", "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(r"[\t\x20-\x7e]*")


def read_headers(
    headers: Mapping[str, str], *, reserved: Collection[str] = _RESERVED, prefixes: tuple[str, ...] = (OWN_PREFIX,)
) -> dict[str, str]:
    """Check an author's headers; ValueError names the one that cannot be sent."""
    for name, value in headers.items():
        if not isinstance(name, str) or not is_header(name):
            raise ValueError(f"{name!r} is not a valid name of a header")
        if name.lower() in reserved or name.lower().startswith(prefixes):
            raise ValueError(f"{name} is set by the transport itself")
        if not isinstance(value, str) or not _VALUE.fullmatch(value):
            raise ValueError(f"the value of {name} cannot be sent: expected printable ASCII")  # it may be a secret
    return dict(headers)


def is_header(name: str) -> bool:
    """Whether a name is a valid header name."""
    return _NAME.fullmatch(name) is not None


def read_retry_after(text: str | None, now: datetime | None = None) -> timedelta | None:
    """How long the server asks us to wait: seconds, or a date. None if it does not say, or not clearly."""
    if text is None:
        return None
    if text.strip().isascii() and text.strip().isdigit():
        return timedelta(seconds=min(int(text.strip()[:10]), 10**9))
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    moment = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return max(moment - (now or datetime.now(UTC)), timedelta(0))
