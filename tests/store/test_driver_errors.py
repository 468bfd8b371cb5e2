"""The errors of a client when the driver fails."""

from __future__ import annotations

import asyncpg
import pytest

from stepwell._core.store_errors import Outage
from stepwell._store.connection.driver_errors import translated


def test_a_lost_connection_is_reported_without_the_drivers_state() -> None:
    """The driver's error for a statement that begins just when its connection ends."""
    with pytest.raises(Outage, match=r"^the connection to the database was lost$") as caught, translated():
        raise asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")

    assert "state" not in str(caught.value)


def test_a_reply_that_takes_too_long_is_reported() -> None:
    with pytest.raises(Outage, match=r"^the database did not answer in time$"), translated():
        raise TimeoutError
