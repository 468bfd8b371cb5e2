"""The time limit of one sending: every transport declares one, and an engine checks it before it uses the transport."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepwell import DefinitionError, Engine
from stepwell.transports import Transport, Webhook
from tests.support.transports import Recording


@pytest.mark.parametrize("longest", [timedelta(0), timedelta(seconds=-1), timedelta(days=2), 60, None], ids=str)
def test_an_invalid_send_timeout_is_refused_with_its_transport(longest: Any) -> None:
    there = Recording()
    there.send_timeout = longest

    with pytest.raises(DefinitionError, match="transports: 'there': send_timeout: expected a timedelta above 0"):
        Engine("postgresql://nowhere", transports=[there])


def test_a_timeout_of_a_webhook_overrides_that_of_the_engine() -> None:
    """Its error says more; each redirect has that time."""
    pytest.importorskip("aiohttp", reason='the extra "webhook" is not installed')
    url, long = "https://pay.example/ask", timedelta(minutes=10)

    usual = Webhook("p", url=url, secret=None)
    patient = Webhook("p", url=url, secret=None, timeout=long)
    following = Webhook("p", url=url, secret=None, timeout=long, follow_redirects=True)

    assert usual.send_timeout == Transport.send_timeout
    assert patient.send_timeout > long
    assert following.send_timeout > 6 * long
