"""The primary and its standby: a failover that loses what the standby had not received."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from stepwell.embedded.account import Account
from tests.chaos.proxy import Proxies
from tests.chaos.servers import Server, find_programs
from tests.support.waiting import eventually

REPLICATION = "replication"
PATIENCE = 60.0
POSITION = "select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint as position"
REPLAYED = (
    "select (pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint as position "
    "where coalesce(pg_last_wal_receive_lsn() <= pg_last_wal_replay_lsn(), true)"
)
LAG = (
    "select (pg_current_wal_insert_lsn() - replay_lsn)::bigint as bytes from pg_stat_replication "
    "where state = 'streaming'"
)


@dataclass(frozen=True)
class Layout:
    """What the servers of a run are made of."""

    postgres: Literal["15", "18"]
    home: Path
    megabytes: int | None
    with_standby: bool
    environment: Mapping[str, str]


class Replicas:
    """`primary` is where the proxies lead; `standby` is there if the run has a failover."""

    def __init__(self, layout: Layout, proxies: Proxies) -> None:
        self._layout = layout
        self._proxies = proxies
        self._account = Account.of_the_server()
        self._programs = find_programs(layout.postgres, self._account)
        self._number = 0
        self.no_memory: str | None = None  # why the folders are on disk
        self.primary = self._server()
        self.standby: Server | None = None

    def _server(self) -> Server:
        self._number += 1
        folder = self._layout.home / f"server-{self._number}"
        return Server(self._programs, folder, self._account, self._layout.environment)

    async def start(self) -> None:
        problem = await asyncio.to_thread(self.primary.prepare, self._layout.megabytes)
        self.no_memory = "the faults chosen need no tmpfs" if self._layout.megabytes is None else problem
        await asyncio.to_thread(self.primary.init)
        await asyncio.to_thread(self.primary.start)
        self.lead_to(self.primary)
        await self.add_standby()

    def lead_to(self, server: Server | None) -> None:
        """Let all proxies connect to that server; None: they refuse."""
        self._proxies.lead_to(None if server is None else server.address)

    async def add_standby(self) -> None:
        """Build a standby from the primary, and wait until it streams."""
        if not self._layout.with_standby:
            return
        self._proxies.get(REPLICATION).refuses = False
        standby = self._server()
        await asyncio.to_thread(standby.prepare, self._layout.megabytes)
        await asyncio.to_thread(standby.copy_from, self.primary, self._proxies.get(REPLICATION).port)
        await asyncio.to_thread(standby.start)
        self.standby = standby
        await eventually(lambda: self.primary.query(LAG), PATIENCE)

    async def is_streaming(self) -> bool:
        """Whether the standby is at most a few pages behind; a newly connected one has not reported yet."""
        rows = await self.primary.query(LAG)
        return bool(rows) and rows[0]["bytes"] is not None and rows[0]["bytes"] < 1_000_000

    def cut_replication(self) -> None:
        """From now on the standby receives nothing."""
        link = self._proxies.get(REPLICATION)
        link.refuses = True
        link.cut()

    async def fail_over(self) -> int:
        """Stop the primary at once and promote the standby; returns up to which position the log survived."""
        standby, old = self.standby, self.primary
        assert standby is not None
        self.lead_to(None)
        await asyncio.to_thread(old.stop, "immediate")
        [row] = await eventually(lambda: standby.query(REPLAYED), PATIENCE)
        await standby.query("select pg_promote()")
        await eventually(lambda: standby.query("select true where not pg_is_in_recovery()"), PATIENCE)
        self.primary, self.standby = standby, None
        await asyncio.to_thread(old.remove)
        return int(row["position"])

    def remove(self) -> None:
        for server in (self.standby, self.primary):
            if server is not None:
                server.remove()
