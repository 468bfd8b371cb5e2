"""Values of flags, from text to what the engine takes."""

from __future__ import annotations

from argparse import ArgumentTypeError
from datetime import datetime, timedelta


def seconds(text: str) -> timedelta:
    """`1.5` is a second and a half."""
    try:
        return timedelta(seconds=float(text))
    except (ValueError, OverflowError):
        raise ArgumentTypeError(f"{text!r} is not a number of seconds") from None


def moment(text: str) -> datetime:
    """An ISO date and time, with its offset: `2026-01-31T09:00:00Z`."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no ISO date and time, for example 2026-01-31T09:00:00Z") from None
    if found.tzinfo is None:
        raise ArgumentTypeError(f"{text!r} has no offset from UTC; for UTC itself, add a Z")
    return found
