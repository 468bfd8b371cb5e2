"""Cleans up Django's connections around every sync step, as Django itself does around every request."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import DatabaseError, close_old_connections, connections

log = logging.getLogger("stepwell")


@contextmanager
def clean_connections() -> Iterator[None]:
    """A step finds no connection that is broken or too old, and leaves none with an open transaction."""
    close_old_connections()
    try:
        yield
    finally:
        end_open_transactions()
        close_old_connections()


def end_open_transactions() -> None:
    """Roll back what this thread left open. Otherwise Django takes such a connection for one in use and gives it to
    others.
    """
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            continue
        log.warning("django: a step left a transaction open on %r; rolling it back", connection.alias)
        try:
            connection.close()
        except DatabaseError as error:
            log.warning("django: its connection did not close: %s", error)
        # The object still counts the atomic blocks that nothing will leave; the next step gets a new one.
        del connections[connection.alias]
