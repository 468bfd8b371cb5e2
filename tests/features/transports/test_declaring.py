"""How a webhook is declared, and what is refused there."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stepwell import DefinitionError
from stepwell.transports import Webhook
from stepwell.transports.webhook.headers import read_retry_after
from tests.features.transports.dispatches import SECRET

pytest.importorskip("aiohttp", reason="the extra \"webhook\" is not installed")

RIGHT: dict[str, Any] = {"url": "https://pay.example/ask", "secret": SECRET, "callback": "https://us.example/complete"}


def test_a_webhook_is_declared_by_its_address_and_secret() -> None:
    webhook = Webhook("payments", **RIGHT, headers={"Authorization": "Bearer x"}, max_in_flight=7)

    assert (webhook.name, webhook.max_in_flight, webhook.sends) == ("payments", 7, True)


@pytest.mark.parametrize(("changes", "field", "problem"), [
    ({"url": "ftp://pay.example/"}, "url", "https"),
    ({"url": "pay.example/ask"}, "url", "https"),
    ({"url": "https:///ask"}, "url", "no host"),
    ({"url": ""}, "url", "expected a URL"),
    ({"url": None}, "url", "expected a URL"),
    ({"url": "https://ana:secret@pay.example/"}, "url", "headers="),
    ({"url": "https://pay.example/#part"}, "url", "#"),
    ({"url": "https://pay.example:99999/"}, "url", "Port"),
    ({"url": "https://pay.example:0/"}, "url", "port"),
    ({"url": "https://zahlung.exämple/"}, "url", "xn--"),
    ({"url": "https://pay.example/a b"}, "url", "%xx"),
    ({"url": "https://pay.example/\r\nHost: x"}, "url", "%xx"),
    ({"url": "http://pay.example/"}, "url", "allow_private"),
    ({"url": "https://[::1]/"}, "url", "loopback"),
    ({"url": "https://[fe80::1/"}, "url", "IPv6"),
    ({"url": "https://169.254.169.254/latest"}, "url", "metadata"),
    ({"url": "https://2130706433/"}, "url", "disguise"),
    ({"url": "https://127.1/"}, "url", "disguise"),
    ({"url": "https://0x7f.0.0.1/"}, "url", "disguise"),
    ({"callback": "us.example/complete"}, "callback", "https"),
    ({"secret": "short"}, "secret", "32"),
    ({"secret": []}, "secret", "at least one"),
    ({"secret": 12}, "secret", "not iterable"),
    ({"headers": {"host": "other.example"}}, "headers", "host"),
    ({"headers": {"Stepwell-Signature": "t=1"}}, "headers", "Stepwell-Signature"),
    ({"headers": {"Content-Length": "1"}}, "headers", "Content-Length"),
    ({"headers": {"X-Key": "a\r\nHost: b"}}, "headers", "X-Key"),
    ({"headers": {"X Key": "a"}}, "headers", "X Key"),
    ({"headers": {"X-Key": 7}}, "headers", "X-Key"),
    ({"timeout": timedelta(0)}, "timeout", "above 0"),
    ({"timeout": 30}, "timeout", "timedelta"),
    ({"timeout": timedelta(hours=1)}, "timeout", "at most"),
    ({"max_in_flight": 0}, "max_in_flight", "from 1"),
    ({"max_in_flight": True}, "max_in_flight", "from 1"),
    ({"allow_private": ["10.0.0.0/99"]}, "allow_private", "network"),
])  # fmt: skip
def test_an_invalid_option_is_refused_with_its_field(
    changes: dict[str, Any], field: str, problem: str
) -> None:
    with pytest.raises(DefinitionError) as refused:
        Webhook("payments", **{**RIGHT, **changes})

    assert str(refused.value).startswith(f"Webhook('payments'): {field}: ")
    assert problem in str(refused.value)


def test_no_error_shows_a_secret() -> None:
    with pytest.raises(DefinitionError) as refused:
        Webhook("payments", url="https://pay.example/?key=hidden#x", secret="hidden")  # noqa: S106 - to see whether it is shown

    assert "hidden" not in str(refused.value)


def test_a_webhook_must_declare_whether_it_signs() -> None:
    with pytest.raises(TypeError, match="secret"):
        Webhook("payments", url="https://pay.example/")  # type: ignore[call-arg]

    Webhook("payments", url="https://pay.example/", secret=None)


@pytest.mark.parametrize(("text", "wait"), [
    ("0", timedelta(0)), ("120", timedelta(minutes=2)), (" 7 ", timedelta(seconds=7)),
    ("9" * 50, timedelta(seconds=10**9)),
    ("Sun, 15 Nov 2026 12:01:00 GMT", timedelta(minutes=1)), ("Sun, 15 Nov 2026 11:00:00 GMT", timedelta(0)),
    ("soon", None), ("-1", None), ("1.5", None), (None, None), ("", None), ("²", None),
])  # fmt: skip
def test_a_retry_after_header_is_parsed_defensively(text: str | None, wait: timedelta | None) -> None:
    assert read_retry_after(text, datetime(2026, 11, 15, 12, 0, tzinfo=UTC)) == wait


def test_a_missing_extra_is_reported_only_when_a_webhook_is_created() -> None:
    script = (
        "import sys; sys.modules['aiohttp'] = None\n"
        "from stepwell import MissingExtra\n"
        "from stepwell.transports import Webhook, verify_signature\n"
        "try: Webhook('p', url='https://pay.example/', secret=None)\n"
        "except MissingExtra as error: print(error)\n"
    )

    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert "pip install 'stepwell[webhook]'" in ran.stdout
