"""Signatures of webhooks: what a receiver can rely on."""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime, timedelta

import pytest

from stepwell import InvalidSignature
from stepwell.transports import verify_signature
from stepwell.transports.webhook.signatures import sign

OLD, NEW = "the older secret, which is long enough", "the newer secret, which is long enough"
BODY = b'{"interactionId":"int-1"}'
AT = datetime(2026, 11, 15, 12, 0, tzinfo=UTC)
SECONDS = int(AT.timestamp())


def signed(*secrets: str, at: int = SECONDS) -> str:
    return sign(BODY, [secret.encode() for secret in secrets], at)


def test_the_signature_is_plain_hmac_that_any_language_can_check() -> None:
    right = hmac.new(NEW.encode(), f"{SECONDS}.".encode() + BODY, hashlib.sha256).hexdigest()

    assert signed(NEW) == f"t={SECONDS},v1={right}"


def test_a_signed_body_verifies() -> None:
    verify_signature(BODY, signed(NEW), NEW, now=AT)

    with pytest.raises(InvalidSignature):
        verify_signature(BODY + b" ", signed(NEW), NEW, now=AT)


@pytest.mark.parametrize(("sender", "receiver"), [
    ([OLD], [OLD]), ([OLD], [NEW, OLD]), ([NEW, OLD], [OLD]), ([NEW, OLD], [NEW]), ([NEW], [NEW, OLD]), ([NEW], [NEW]),
])  # fmt: skip
def test_secrets_rotate_without_a_simultaneous_change_on_both_sides(sender: list[str], receiver: list[str]) -> None:
    verify_signature(BODY, signed(*sender), receiver, now=AT)

    with pytest.raises(InvalidSignature):
        verify_signature(BODY, signed("a secret of nobody, which is long enough"), receiver, now=AT)


@pytest.mark.parametrize("apart", [timedelta(minutes=5, seconds=1), timedelta(minutes=-5, seconds=-1)])
def test_a_recorded_request_is_refused_later_and_earlier(apart: timedelta) -> None:
    with pytest.raises(InvalidSignature, match="at most 300 s apart"):
        verify_signature(BODY, signed(NEW), NEW, now=AT + apart)

    verify_signature(BODY, signed(NEW), NEW, now=AT + apart, within=timedelta(minutes=6))


def test_the_time_is_signed_too() -> None:
    moved = signed(NEW).replace(f"t={SECONDS}", f"t={SECONDS + 60}")

    with pytest.raises(InvalidSignature, match="matches the body"):
        verify_signature(BODY, moved, NEW, now=AT)


@pytest.mark.parametrize("signature", [
    None, "", "v1=00", "t=1", f"t={SECONDS}", f"t={SECONDS},v1=", f"t={SECONDS},v1=Zoë", f"t={SECONDS},t=1,v1=00",
    "t=-1,v1=00", "t=²,v1=00", f"t={'9' * 400},v1=00", ",,,", "t=1" + ",v1=00" * 1000, "t=1,v1=\ud800",
])  # fmt: skip
def test_a_malformed_signature_is_refused(signature: str | None) -> None:
    with pytest.raises(InvalidSignature):
        verify_signature(BODY, signature, NEW, now=AT)


def test_another_body_or_another_secret_is_refused() -> None:
    with pytest.raises(InvalidSignature):
        verify_signature(BODY + b" ", signed(NEW), NEW, now=AT)
    with pytest.raises(InvalidSignature):
        verify_signature(BODY, signed(OLD), NEW, now=AT)


@pytest.mark.parametrize("secrets", ["short", b"short", [], [NEW, "short"]])
def test_a_receiver_with_an_invalid_secret_is_refused(secrets: str | bytes | list[str]) -> None:
    with pytest.raises(ValueError, match="secret"):
        verify_signature(BODY, signed(NEW), secrets, now=AT)
