"""What a statement costs: prepared once, run as often as the plan cache considers, then explained inside rollbacks.

A rolled-back run leaves dead rows. An insertion into an index page that their entries have filled looks each of them up
in the table and removes it, at some 50 pages, in whichever run the page is full. So the cheapest of some runs counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, cast

import asyncpg

from stepwell._store.connection.sql_files import statement

WARM_UPS = 6  # the plan cache decides for good, or not, after five
RUNS = 3  # a page that one of them cleans or splits, the next finds with room

_TABLES = """
select string_agg('stepwell.' || relname, ', ') from pg_catalog.pg_class
where relnamespace = 'stepwell'::regnamespace and relkind = 'r'
"""
_WITHOUT_AUTOVACUUM = """
do $$ declare name text; begin
  for name in select relname from pg_catalog.pg_class
              where relnamespace = 'stepwell'::regnamespace and relkind = 'r' loop
    execute format('alter table stepwell.%I set (autovacuum_enabled = off)', name);
  end loop;
end $$
"""

Node = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """One explained run: every node of its tree, what it touched, how long it took."""

    nodes: list[Node]
    buffers: int
    milliseconds: float

    def indexes(self, table: str) -> set[str]:
        """The indexes through which it reads a table."""
        names = {str(node["Index Name"]) for node in self.nodes if "Index Name" in node}
        return {name for name in names if name.startswith(table + "_")}

    def kinds(self) -> set[str]:
        return {str(node["Node Type"]) for node in self.nodes}

    def seq_scans(self) -> set[str]:
        """Tables read from end to end."""
        return {str(node["Relation Name"]) for node in self.nodes if node["Node Type"] == "Seq Scan"}

    def rows_handled(self) -> int:
        """Rows that any node returned or discarded, over all its loops: quadratic where the plan is."""
        return sum(round(node["Actual Loops"] * (node["Actual Rows"] + _removed(node))) for node in self.nodes)


def _removed(node: Node) -> float:
    return float(sum(count for label, count in node.items() if label.startswith("Rows Removed by")))


class Bench:
    """One connection with the session's settings; statements stay prepared on it."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._connection = connection
        self._prepared: set[str] = set()

    async def explain(self, name: str, *args: object) -> Plan:
        """The cheapest run of a statement that this connection has run more than five times. Changes nothing."""
        return min(await self.explain_often(RUNS, name, *args), key=lambda run: run.buffers)

    async def explain_often(self, runs: int, name: str, *args: object) -> list[Plan]:
        call = await self.warm_up(name, *args)
        return [await self._run(call) for _ in range(runs)]

    async def vacuum(self) -> None:
        """Remove what earlier runs left, so that a statement costs the same whichever ones came before it.

        Plans are made anew after it.
        """
        tables = await self._connection.fetchval(_TABLES)
        await self._connection.execute(f"vacuum (index_cleanup on, truncate off) {tables}")

    async def _run(self, call: str) -> Plan:
        async with rolled_back(self._connection):
            text = await self._connection.fetchval(f"explain (analyze, buffers, timing off, format json) {call}")
        [explained] = json.loads(text)
        root = explained["Plan"]
        nodes = list(_walk(root))
        return Plan(nodes, _buffers(root, nodes), float(explained["Execution Time"]))

    async def warm_up(self, name: str, *args: object) -> str:
        """Run it until the plan cache has decided, unless it has; returns the call."""
        label = "run_" + name.replace("/", "_")
        call = f"execute {label}" + (f"({', '.join(map(_literal, args))})" if args else "")
        if label not in self._prepared:
            await self._connection.execute(f"prepare {label} as {statement(name)}")
            self._prepared.add(label)
            for _ in range(WARM_UPS):
                async with rolled_back(self._connection):
                    await self._connection.execute(call)
        return call


@asynccontextmanager
async def rolled_back(connection: asyncpg.Connection) -> Any:
    """A transaction that leaves nothing but dead rows."""
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield
    finally:
        await transaction.rollback()


async def without_autovacuum(url: str) -> None:
    """From now on only the test takes statistics and removes dead rows."""
    connection = await asyncpg.connect(url)
    await connection.execute(_WITHOUT_AUTOVACUUM)
    await connection.close()


@asynccontextmanager
async def benched(url: str, session: Mapping[str, str]) -> Any:
    connection = await asyncpg.connect(url, server_settings=dict(session))
    try:
        yield Bench(connection)
    finally:
        await connection.close()


def _walk(node: Node) -> Iterator[Node]:
    yield node
    for child in node.get("Plans", ()):
        yield from _walk(child)


def _buffers(root: Node, nodes: Iterable[Node]) -> int:
    """The top node, and writing CTEs that nothing reads: they run after it."""
    nodes = list(nodes)
    read = {node["CTE Name"] for node in nodes if node["Node Type"] == "CTE Scan" and node["Actual Loops"]}
    unread = [n for n in nodes if n.get("Subplan Name", "").startswith("CTE ") and n["Subplan Name"][4:] not in read]
    return sum(n["Shared Hit Blocks"] + n["Shared Read Blocks"] for n in [root, *unread])


def _literal(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool() | int() | float():
            return str(value).lower()
        case datetime() | timedelta():
            return f"'{_bare(value)}'"
        case str():
            return "'" + value.replace("'", "''") + "'"
        case _:
            items = ",".join(_element(item) for item in cast("Sequence[object]", value))
            return "'{" + items.replace("'", "''") + "}'"


def _element(value: object) -> str:
    if value is None:
        return "null"
    return '"' + _bare(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _bare(value: object) -> str:
    match value:
        case timedelta():
            return f"{value.total_seconds()} seconds"
        case datetime():
            return value.isoformat()
        case bool():
            return str(value).lower()
        case _:
            return str(value)
