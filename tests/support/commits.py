"""Commits as tests send them."""

from __future__ import annotations

from math import inf

from stepwell._store.operations.commit import CommitPaths


def full_path() -> CommitPaths:
    """Commit by the full path only."""
    return CommitPaths(full_until=inf)
