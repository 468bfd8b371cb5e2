"""Some settings of Django for the length of a block.

Its connections need them, and other tests have a whole project.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings


@contextmanager
def some_settings() -> Iterator[None]:
    """Have settings for the length of the block, unless a project has been set up already."""
    if settings.configured:
        yield
        return
    before = settings._wrapped
    settings.configure()
    try:
        yield
    finally:
        settings._wrapped = before  # clears what it has cached, too
