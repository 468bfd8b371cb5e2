"""A flock that ends with its process, and is never inherited."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self


class Lock:
    """A flock on its own file, never inherited by a child."""

    _open: set[Lock] = set()  # noqa: RUF012 - ClassVar would hide that this is one set for the whole process

    def __init__(self, path: Path, mode: int) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        self._open.add(self)
        fcntl.flock(self._descriptor, mode)

    @property
    def held(self) -> bool:
        return self in self._open

    def is_the_only_one(self) -> bool:
        """Turn a shared lock into an exclusive one; False if another process shares it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        if self.held:
            self._open.discard(self)
            os.close(self._descriptor)

    @classmethod
    def close_all(cls) -> None:
        for lock in tuple(cls._open):
            lock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# A fork shares the open file, and with it the lock, which would then outlive us: the child closes it at once.
os.register_at_fork(after_in_child=Lock.close_all)
