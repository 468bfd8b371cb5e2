"""Signatures of requests: HMAC-SHA256 over the time and the body, made here, checked by the receiver."""

from __future__ import annotations

import hmac
import time
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from stepwell.errors import InvalidSignature

SIGNATURE_HEADER: Final = "Stepwell-Signature"
SHORTEST_SECRET: Final = 32  # bytes
REPLAY_WINDOW: Final = timedelta(minutes=5)

Secrets: TypeAlias = str | bytes | Sequence[str | bytes]
"""One secret, or several while they are being replaced: the sender signs with all, the receiver accepts any."""

_MOST_SIGNATURES: Final = 16
_MOST_DIGITS: Final = 15


def read_secrets(secrets: Secrets) -> tuple[bytes, ...]:
    """Check secrets; ValueError says what is wrong with them, without showing them."""
    listed = [secrets] if isinstance(secrets, (str, bytes)) else list(secrets)
    if not listed:
        raise ValueError("expected at least one secret")
    return tuple(_read_secret(secret) for secret in listed)


def _read_secret(secret: object) -> bytes:
    if not isinstance(secret, (str, bytes)):
        raise ValueError(f"expected text or bytes, got a {type(secret).__name__}")  # noqa: TRY004 - callers name the field
    raw = secret.encode() if isinstance(secret, str) else secret
    if len(raw) < SHORTEST_SECRET:
        raise ValueError(f"{len(raw)} bytes are too few for a secret; at least {SHORTEST_SECRET}, drawn at random")
    return raw


def sign(body: bytes, secrets: Iterable[bytes], at: int) -> str:
    """The header's value: `t=<seconds since 1970>,v1=<hex>`, with one v1 for each secret."""
    return ",".join([f"t={at}", *(f"v1={_digest(secret, at, body)}" for secret in secrets)])


def verify_signature(
    body: bytes,
    signature: str | None,
    secrets: Secrets,
    *,
    within: timedelta = REPLAY_WINDOW,
    now: datetime | None = None,
) -> None:
    """Check the signature of a request, in a receiver; InvalidSignature if it is not ours, or too old or too new.

    `body` is the raw body, before anything parsed it; `signature` the header `Stepwell-Signature`. `within` bounds how
    far its time may be from `now`, so that a recorded request cannot be replayed later.
    """
    known = read_secrets(secrets)
    at, given = _read(signature)
    if not _is_any(given, [_digest(secret, at, body) for secret in known]):
        raise InvalidSignature("signature", "no signature matches the body with these secrets")
    age, most = (time.time() if now is None else now.timestamp()) - at, within.total_seconds()
    if abs(age) > most:
        raise InvalidSignature("signature", f"it was signed {age:.0f} s ago; at most {most:.0f} s apart are allowed")


def _digest(secret: bytes, at: int, body: bytes) -> str:
    return hmac.digest(secret, b"%d." % at + body, "sha256").hex()


def _read(signature: str | None) -> tuple[int, list[str]]:
    if not signature:
        raise InvalidSignature("signature", f"the header {SIGNATURE_HEADER} is missing")
    pairs = [part.strip().partition("=") for part in signature.split(",", _MOST_SIGNATURES)]
    times = [value for name, _, value in pairs if name == "t"]
    if len(times) != 1 or not (times[0].isascii() and times[0].isdigit()) or len(times[0]) > _MOST_DIGITS:
        raise InvalidSignature("signature", "expected t=<seconds>,v1=<hex>")
    return int(times[0]), [value for name, _, value in pairs if name == "v1"]


def _is_any(given: Sequence[str], right: Sequence[str]) -> bool:
    """Compare each with each, even after a match, so that the duration tells nothing."""
    fits = [hmac.compare_digest(one.encode(errors="replace"), other.encode()) for one in given for other in right]
    return any(fits)
