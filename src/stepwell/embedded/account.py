"""The system user that the server runs as, and the folders it needs."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stepwell.errors import EmbeddedError

PRIVATE, SHARED = "stepwell", "nobody"
_ENVIRONMENT = ("PATH", "TZ", "LD_LIBRARY_PATH")


@dataclass(frozen=True)
class Account:
    """The system user that the server runs as: the caller's own; for root `stepwell` if it exists, or else `nobody`."""

    uid: int
    gid: int
    name: str = ""  # set for root only

    @classmethod
    def of_the_server(cls) -> Account:
        if os.geteuid() != 0:
            return cls(os.geteuid(), os.getegid())
        for name in (PRIVATE, SHARED):
            with suppress(KeyError):
                found = pwd.getpwnam(name)
                return cls(found.pw_uid, found.pw_gid, name)
        raise EmbeddedError(
            f"Postgres refuses root, and there is no user {PRIVATE!r} or {SHARED!r} to run it as; run as another user"
        )

    @property
    def is_shared(self) -> bool:
        """Whether unrelated services may run as that user too, with all of its rights."""
        return self.name == SHARED

    @property
    def is_ours(self) -> bool:
        return self.uid == os.geteuid()

    def run(self, program: Path, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        # The server needs neither variables such as PGPORT nor the caller's secrets.
        passed_on = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        return subprocess.run(  # noqa: S603 - a program of the wheel, without a shell
            [program, *arguments],
            user=None if self.is_ours else self.uid,
            group=None if self.is_ours else self.gid,
            extra_groups=None if self.is_ours else [],
            env=passed_on | {"LC_ALL": "C"},
            input=given,
            capture_output=True,
            text=True,
            errors="replace",
            cwd="/",
            close_fds=True,
            umask=0o077,
            check=False,
        )

    def make_private(self, folder: Path) -> None:
        folder.chmod(0o700)
        if not self.is_ours:
            os.chown(folder, self.uid, self.gid)

    def make_home(self, home: Path) -> None:
        """Create the folder and its parents, private to us unless the server's user has to pass through."""
        missing = [folder for folder in (home, *home.parents) if not folder.exists()]
        try:
            for folder in reversed(missing):
                folder.mkdir(exist_ok=True)
                folder.chmod(0o700 if self.is_ours else 0o755)
        except OSError as error:
            raise EmbeddedError(f"cannot create {home}: {error.strerror}; set STEPWELL_DATA_HOME") from error
        if not self.is_ours:
            self._check_passage(home)

    def _check_passage(self, home: Path) -> None:
        for folder in (*reversed(home.parents), home):
            found = folder.stat()
            others = stat.S_IXGRP if found.st_gid == self.gid else stat.S_IXOTH
            if not found.st_mode & (stat.S_IXUSR if found.st_uid == self.uid else others):
                raise EmbeddedError(
                    f"for root Postgres runs as the user {self.name!r}, which may not enter {folder}; "
                    "set STEPWELL_DATA_HOME to a folder with parents that everyone may enter"
                )
