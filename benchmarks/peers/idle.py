"""How many statements an idle worker sends, counted in the server's log: pg_stat_statements is not in the wheel."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from urllib.parse import urlsplit, urlunsplit

from benchmarks.bench import query
from benchmarks.peers.child import Answer, ended, read, started, until_ready

LOGGED = {"log_line_prefix": "%d|"}  # the server's log names the database in each line
LOG = "server.log"  # in the folder of the embedded cluster
MINUTE = 60.0


async def count_statements(url: str, command: Sequence[str], seconds: float, patience: float) -> Answer:
    """The answer of a system with an idle worker, with its statements in that many seconds."""
    parts = urlsplit(url)
    database = parts.path.removeprefix("/")
    elsewhere = urlunsplit(parts._replace(path="/postgres"))  # our own queries must not be counted
    await query(url, f"alter database {database} set log_statement = 'all'")
    async with started(command) as process:
        try:
            async with asyncio.timeout(seconds + patience):
                is_ready, first = await until_ready(process)
                if is_ready:
                    begin = await log_size(elsewhere)
                    await asyncio.sleep(seconds)
                    statements = count(await log_since(elsewhere, begin), database)
                written, complaint = await ended(process)
        except TimeoutError:
            return Answer(failed=f"cut off after {seconds + patience:g} s")
    answer = read(first + written.decode(), process.returncode, complaint.decode(errors="replace"))
    if not is_ready or answer.failed:
        return answer
    return replace(answer, values={"statements": statements * MINUTE / seconds})


async def log_size(url: str) -> int:
    [row] = await query(url, "select (pg_stat_file($1)).size as size", [LOG])
    return int(row["size"])


async def log_since(url: str, begin: int) -> str:
    [row] = await query(url, "select pg_read_file($1, $2, 1000000000) as text", [LOG, begin])
    return str(row["text"])


def count(log: str, database: str) -> int:
    """The statements of a database, in the lines of a log."""
    statement = re.compile(rf"^{database}\|LOG:  (statement|execute [^:]*): ")
    return sum(1 for line in log.splitlines() if statement.match(line))
