"""Connections over TCP: both sides find out that the other is gone, without a setting in any configuration."""

from __future__ import annotations

import ast
import re
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import stepwell._store
from stepwell import Context, Done, Engine, Machine, step
from stepwell._store.connection import dark_connections
from stepwell._store.connection.settings import PROBES, Bounds, SettledConnection
from tests.support.own_server import own_server
from tests.support.waiting import eventually

LEASE = timedelta(seconds=6)
BEAT = timedelta(seconds=1)
KINDS = {"stepwell", "stepwell worker", "stepwell heartbeat", "stepwell listener", "stepwell step", "stepwell look"}
OF_CLIENTS = {"stepwell", "stepwell listener", "stepwell look"}
STORE = Path(stepwell._store.__file__).parent
NOT_OF_AN_ENGINE = {
    "databases._connect": "makes, copies and drops databases of tests",
    "queries.KitQueries._fetch": "is the test kit's own",
}


class Booked(Machine):
    @step(transactional=True)
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("booked")


@pytest.fixture
def rules() -> Iterator[Path]:
    """A file of rules that let every role of this host connect, where the server's user may read it."""
    folder = Path(tempfile.mkdtemp(prefix="stepwell-rules-", dir="/tmp"))
    folder.chmod(0o755)
    file = folder / "pg_hba.conf"
    file.write_text("local all all trust\nhost all all 127.0.0.0/8 trust\n")
    file.chmod(0o644)
    yield file
    shutil.rmtree(folder)


async def test_every_connection_over_tcp_has_keepalives_on_both_sides(
    monkeypatch: pytest.MonkeyPatch, rules: Path
) -> None:
    own: dict[str, dict[str, int]] = {}
    servers: dict[str, dict[str, str]] = {}
    settle = SettledConnection.settle

    async def noted(self: SettledConnection, *given: Any) -> None:
        await settle(self, *given)
        is_beat = threading.current_thread().name == "stepwell heartbeat"
        name = "stepwell heartbeat" if is_beat else await self.fetchval("show application_name")
        servers[name] = {setting: await self.fetchval(f"show {setting}") for setting in Bounds().tcp()}
        own[name] = _options(self._transport.get_extra_info("socket"))

    monkeypatch.setattr(SettledConnection, "settle", noted)
    address = ".".join(["127", *map(str, secrets.SystemRandom().sample(range(1, 250), 3))])
    with own_server(listen_addresses=address, hba_file=str(rules)):
        url = f"postgresql://postgres@{address}/stepwell"
        await Engine(url).migrate()
        own.clear()
        async with Engine(url, machines=[Booked], lease=LEASE, heartbeat=BEAT) as engine, engine.worker():
            assert await (await engine.start(Booked)).result(timeout=20) == "booked"
            async with engine._opened.transaction(is_long=True) as session:
                connection: Any = session._connection
                assert await dark_connections._is_at_work(connection.bare)
            await eventually(lambda: own.keys() >= KINDS)

    wanted = {kind: Bounds.of_client(LEASE) if kind in OF_CLIENTS else Bounds.of_worker(LEASE)
              for kind in KINDS}  # fmt: skip
    assert own == {kind: _of_socket(bounds) for kind, bounds in wanted.items()}
    assert servers == {kind: _as_shown(bounds) for kind, bounds in wanted.items()}


def test_every_function_that_connects_for_an_engine_settles_the_connection() -> None:
    made = {name: text for name, text in _functions() if re.search(r"asyncpg\.(connect|create_pool)\(", text)}

    assert NOT_OF_AN_ENGINE.keys() <= made.keys()
    assert {name for name, text in made.items() if ".settle(" not in text and "init=settle" not in text} == set(
        NOT_OF_AN_ENGINE
    )


def _functions() -> Iterator[tuple[str, str]]:
    """The functions of the store's modules and classes, with their source."""
    for path in sorted(STORE.rglob("*.py")):
        text = path.read_text()
        module = ast.parse(text)
        classes = [node for node in module.body if isinstance(node, ast.ClassDef)]
        for owner in (module, *classes):
            prefix = f"{path.stem}.{owner.name}" if isinstance(owner, ast.ClassDef) else path.stem
            for node in owner.body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield f"{prefix}.{node.name}", ast.get_source_segment(text, node) or ""


def _options(given: socket.socket) -> dict[str, int]:
    """What the kernel reports about a socket of this process."""
    names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    shown = {name: given.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) for name in names}
    return {"SO_KEEPALIVE": given.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), **shown}


def _of_socket(bounds: Bounds) -> dict[str, int]:
    idle, interval = bounds.keepalive
    return {"SO_KEEPALIVE": 1, "TCP_KEEPIDLE": idle, "TCP_KEEPINTVL": interval, "TCP_KEEPCNT": PROBES,
            "TCP_USER_TIMEOUT": int(bounds.idle * 1000)}  # fmt: skip


def _as_shown(bounds: Bounds) -> dict[str, str]:
    """What Postgres shows of a session's settings."""
    return bounds.tcp() | {"idle_in_transaction_session_timeout": f"{bounds.idle:g}s"}
