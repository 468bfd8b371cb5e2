"""An error becomes text that Postgres holds, whatever the author's exception does."""

from __future__ import annotations

import json

import pytest

from stepwell._core.transition import MAX_MESSAGE, MAX_TRACEBACK, failure_text


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def shown(error: str | BaseException) -> dict[str, str]:
    return dict(json.loads(failure_text(error)))


def test_an_error_with_a_message_that_raises_is_still_shown() -> None:
    failure = shown(Unspeakable())

    assert failure["type"] == "Unspeakable"
    assert "cannot be shown" in failure["message"]


@pytest.mark.parametrize("bad", ["nul \x00 inside", "lone \ud800 surrogate"])
def test_a_message_postgres_cannot_hold_is_cleaned(bad: str) -> None:
    message = shown(ValueError(bad))["message"]

    assert "\x00" not in message
    assert message.encode()


def test_a_long_message_keeps_its_beginning_and_a_long_traceback_its_end() -> None:
    error = ValueError("first" + "x" * 50_000 + "last")

    failure = shown(error)

    assert failure["message"].startswith("first")
    assert len(failure["message"]) < MAX_MESSAGE + 5
    assert failure["traceback"].rstrip().endswith("last")
    assert len(failure["traceback"]) < MAX_TRACEBACK + 5


def test_an_error_given_as_text_has_no_traceback() -> None:
    assert shown("why") == {"type": "Stop", "message": "why", "traceback": None}
