"""One cluster folder and the Postgres on it."""

from __future__ import annotations

import asyncio
import atexit
import fcntl
import hashlib
import logging
import os
import shlex
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Self
from urllib.parse import quote

from stepwell.embedded.account import PRIVATE, SHARED, Account
from stepwell.embedded.lock import Lock
from stepwell.embedded.programs import data_home, programs, sibling
from stepwell.errors import EmbeddedError

log = logging.getLogger("stepwell")

SHARED_ACCOUNT = (
    f"embedded: as root, Postgres runs as the user {SHARED!r}, and all that runs as that user on this host may "
    f"read and change all of it. For a user of its own: useradd --system {PRIVATE}; or do not run as root"
)
_PORT = 5432
_SOCKET = f".s.PGSQL.{_PORT}"
_SOCKET_PATH_BYTES = 103  # the limit of macOS; Linux allows four more
_PATIENCE = 120.0  # seconds; recovery after a crash replays up to a gigabyte of WAL
_SETTINGS = {
    "listen_addresses": "",
    "port": str(_PORT),
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "cluster_name": "stepwell",
}
_CREATE_DATABASE = (
    "select 'create database stepwell' "
    "where not exists (select from pg_database where datname = 'stepwell') \\gexec"
)


class EmbeddedServer:
    """One cluster folder and the Postgres on it, shared by all processes and objects that join it.

    The last to leave stops the server. If the last one was killed, the server keeps running, and the next
    one to join and leave stops it. `settings` are more options for Postgres, used by the one that starts it.
    """

    def __init__(
        self, folder: Path | None = None, *, settings: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.folder = (folder or data_home() / "postgres-18").resolve()
        if set(str(self.folder)) & set('"$`\\\n,'):
            raise EmbeddedError(f"{self.folder} has a character that pg_ctl cannot take; name another folder")
        self._settings = dict(settings)
        self._account = Account.of_the_server()
        self._user: Lock | None = None

    def join(self) -> str:
        """Keep the server running until `leave`; returns the URL of its database `stepwell`."""
        if self._user is None or not self._user.held:
            with self._deciding():
                user = Lock(self._beside("users"), fcntl.LOCK_SH)
                try:
                    self._start()
                    self._create_database()
                except BaseException:
                    user.close()
                    raise
            self._user = user
            atexit.register(self.leave)
        return self.url()

    def leave(self) -> None:
        """Stop using the server; the last one to leave stops it."""
        atexit.unregister(self.leave)
        user, self._user = self._user, None
        if user is None or not user.held:
            return
        with user, self._deciding():
            if user.is_the_only_one():
                self._stop("fast")

    def start(self) -> None:
        """Start the server if it does not run, also for others that have joined it."""
        with self._deciding():
            self._start()

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server if it runs, even if others have joined it; "immediate" is a crash that needs recovery."""
        with self._deciding():
            self._stop(mode)

    def url(self, database: str = "stepwell") -> str:
        # The port is given, as a driver would otherwise take it from $PGPORT.
        host = quote(str(self._socket_folder()))
        return f"postgresql://postgres@/{quote(database, safe='')}?host={host}&port={_PORT}"

    def __enter__(self) -> Self:
        self.join()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def _beside(self, what: str) -> Path:
        return self.folder.with_name(f"{self.folder.name}.{what}")

    def _deciding(self) -> Lock:
        self._account.make_home(self.folder.parent)
        return Lock(self._beside("lock"), fcntl.LOCK_EX)

    def _run(self, program: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return self._account.run(programs(self._account) / program, *arguments, given=given)

    def _pg_ctl(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._run(
            "pg_ctl", verb, "--wait", f"--timeout={_PATIENCE:.0f}", f"--pgdata={self.folder}", *arguments
        )

    def _problem(self, what: str, why: str) -> EmbeddedError:
        return EmbeddedError(f"the embedded Postgres in {self.folder} {what}:\n{why.strip()}")

    def _start(self) -> None:
        if not (self.folder / "PG_VERSION").exists():
            self._init()
        self._check_owner()
        self._make_socket_folder()
        deadline = time.monotonic() + _PATIENCE
        # "starting" and "stopping" are only seen if a process was killed during either.
        while (status := self._status()) != "ready":
            if time.monotonic() > deadline:
                raise self._problem("did not become ready", f"it is {status} after {_PATIENCE:g} s")
            if status is None:
                self._launch()
            else:
                time.sleep(0.05)

    def _init(self) -> None:
        partial = sibling(self.folder)
        self._account.make_private(partial)
        cluster = (f"--pgdata={partial}", "--username=postgres", "--auth-local=trust", "--auth-host=reject",
                   "--no-sync")
        # The builtin locale needs none of the system's, of which a bare machine has few.
        locale = ("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
        try:
            done = self._run("initdb", *cluster, *locale)
            if done.returncode != 0:
                raise self._problem("has no cluster, and initdb failed", done.stderr)
            partial.rename(self.folder)
        except OSError as error:
            raise self._problem("has other files, and no cluster", str(error)) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _check_owner(self) -> None:
        owner = self.folder.stat().st_uid
        if owner != self._account.uid:
            raise EmbeddedError(
                f"{self.folder} belongs to uid {owner}, and the server would run as uid {self._account.uid}; "
                "set STEPWELL_DATA_HOME to a folder of your own, or, as root, change the owner of its files"
            )

    def _launch(self) -> None:
        """Start the postmaster and wait until it is ready, or until a temporary problem stops it."""
        self._remove_stale_locks()
        written_to = self.folder / "server.log"
        known = written_to.stat().st_size if written_to.exists() else 0
        settings = _SETTINGS | {"unix_socket_directories": str(self._socket_folder())} | self._settings
        options = shlex.join(word for name, value in settings.items() for word in ("-c", f"{name}={value}"))
        done = self._pg_ctl("start", f"--log={written_to}", f"--options={options}")
        if done.returncode != 0:
            written = written_to.read_bytes()[known:].decode(errors="replace") if written_to.exists() else ""
            if not self._will_pass(written):
                raise self._problem("did not start", "\n".join((written or done.stderr).splitlines()[-20:]))

    def _will_pass(self, log: str) -> bool:
        # The backends of a killed postmaster take a moment to notice; the start of a killed process may succeed.
        return "shared memory block" in log or self._status() is not None

    def _remove_stale_locks(self) -> None:
        # Postgres takes a stale pid file for a running server if any process of its user has that pid now, as
        # is likely in a restarted container. Its check of the shared memory, which no file can fool, stays.
        (self.folder / "postmaster.pid").unlink(missing_ok=True)
        (self._socket_folder() / f"{_SOCKET}.lock").unlink(missing_ok=True)

    def _stop(self, mode: str) -> None:
        if self._status() is None:
            return
        done = self._pg_ctl("stop", f"--mode={mode}")
        if done.returncode != 0 and self._status() is not None:
            raise self._problem("did not stop", done.stderr)

    def _create_database(self) -> None:
        how = ("--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1")
        done = self._run("psql", *how, f"--dbname={self.url('postgres')}", given=_CREATE_DATABASE)
        if done.returncode != 0:
            raise self._problem("cannot create the database 'stepwell'", done.stderr)

    def _status(self) -> str | None:
        """The postmaster's own status: starting, ready, stopping; None if it does not run."""
        try:
            lines = (self.folder / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return None
        # After a crash of the machine the file may be empty, or full of zeros.
        ours = bool(lines) and lines[0].isdecimal() and self._is_postmaster(int(lines[0]))
        if not ours and not self._answers():
            return None
        return lines[7].strip() if len(lines) > 7 else "starting"  # noqa: PLR2004 - the eighth line is the status

    def _is_postmaster(self, pid: int) -> bool:
        try:
            os.kill(pid, 0)
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (ProcessLookupError, PermissionError):
            return False
        except FileNotFoundError:
            return not Path("/proc/self").exists()  # without /proc, as on macOS, a live pid has to suffice
        return os.fsencode(self.folder) in command.split(b"\0")

    def _answers(self) -> bool:
        # A postmaster in another container that shares the folder has no pid here, but its socket.
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self._socket_folder() / _SOCKET))
            except OSError:
                return False
        return True

    def _socket_folder(self) -> Path:
        if len(os.fsencode(self.folder / _SOCKET)) <= _SOCKET_PATH_BYTES:
            return self.folder
        # All users of the cluster have to agree on it, so $TMPDIR cannot decide it.
        name = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:16]
        return Path("/tmp") / f"stepwell-{self._account.uid}-{name}"  # noqa: S108 - _make_socket_folder checks the owner

    def _make_socket_folder(self) -> None:
        folder = self._socket_folder()
        if folder == self.folder:
            return
        try:
            folder.mkdir(mode=0o700)
            self._account.make_private(folder)
        except FileExistsError:
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != self._account.uid or found.st_mode & 0o077:
                raise EmbeddedError(f"{folder}, the folder of the socket, is not private to us; remove it") from None


async def join(stack: AsyncExitStack) -> str:
    """Join the server of this user until the stack is left; returns its URL."""
    server = EmbeddedServer()
    if Account.of_the_server().is_shared:
        log.warning(SHARED_ACCOUNT)
    url = await asyncio.to_thread(server.join)
    stack.push_async_callback(asyncio.to_thread, server.leave)
    return url
