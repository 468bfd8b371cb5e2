"""How the tests of interactions read rows, and the two ways in which they complete."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from uuid import UUID

import asyncpg

from stepwell import CompletionRefused, InvalidInput, PayloadTooLarge
from stepwell._client.admin.interactions import Interaction
from stepwell.testing import Harness

SECRET, OLD_SECRET = "s" * 32, "o" * 40
REASONS = {
    "SW001": "input", "SW004": "size", "SW021": "unknown", "SW022": "token", "SW023": "conflict", "SW024": "closed",
    "SW025": "late", "SW026": "type",
}  # fmt: skip


class Refused(Exception):
    """A refused completion: the reason, in one word, and its field, if the caller gets one."""

    def __init__(self, reason: str, said: str, field: str | None = None) -> None:
        super().__init__(reason, said, field)
        self.reason = reason
        self.said = said
        self.field = field


class PythonCompleter:
    """`engine.complete`."""

    def __init__(self, h: Harness) -> None:
        self._engine = h.engine

    async def complete(self, **given: Any) -> bool:
        """Complete; returns whether it is a duplicate."""
        try:
            return (await self._engine.complete(**given)).is_duplicate
        except PayloadTooLarge as error:
            raise Refused("size", str(error), error.field) from error
        except InvalidInput as error:
            raise Refused("input", str(error), error.field) from error
        except CompletionRefused as error:
            raise Refused(error.reason, str(error)) from error


class SqlCompleter:
    """`select * from stepwell.complete(…)`, each over a connection of its own."""

    def __init__(self, h: Harness) -> None:
        self._h = h

    async def complete(self, *, reply: Any, **given: Any) -> bool:
        """Complete; returns whether it is a duplicate."""
        given = {"reply": json.dumps(reply), **given}
        named = ", ".join(f"{name} => ${place}" for place, name in enumerate(given, 1))
        try:
            [row] = await Harness.sql(self._h, f"select * from stepwell.complete({named})", *given.values())
        except asyncpg.PostgresError as error:
            raise Refused(REASONS[str(error.sqlstate)], str(error), error.column_name) from error
        return bool(row["is_duplicate"])


COMPLETERS: dict[str, Any] = {"python": PythonCompleter, "sql": SqlCompleter}


async def pending(h: Harness, **filters: Any) -> list[Interaction]:
    """Open interactions, those of one unit in item order."""
    found = (await h.engine.interactions.pending(**filters)).items
    return sorted(found, key=lambda q: (q.unit_id, q.index or 0))


async def asked(h: Harness, machine: Any, state: Any = None, **options: Any) -> tuple[Any, Interaction]:
    """Start a machine and let it ask; returns its handle and its only interaction."""
    handle = await h.engine.start(machine, state, **options)
    await h.drain()
    [row] = await h.sql("select id::text from stepwell.interactions where instance_id = $1 and finished_at is null",
                        handle.id)  # fmt: skip
    return handle, await h.engine.interactions.get(row["id"], tenant=options.get("tenant"))


def guesses(interaction: Interaction) -> list[str]:
    """A correlation that a caller without a secret could compute: with its key too."""
    texts = []
    for visit in range(4):
        key = f"{interaction.instance_id}:{visit}:0:"
        parts = [interaction.tenant, interaction.instance_id, visit, 0]
        texts += ["\x1f".join(map(str, [*parts, of])) for of in (key, "", interaction.idempotency_key)]
    return [str(UUID(hashlib.sha256(text.encode()).hexdigest()[:32])) for text in texts]


async def interaction_rows(h: Harness, instance_id: int) -> list[Any]:
    """All interactions of an instance as rows, in the order they were opened."""
    return await h.sql(
        "select q.*, u.status as unit_status, u.visit, u.opened, u.resolved, u.in_flight, u.is_filled"
        " from stepwell.interactions q join stepwell.await_units u on u.id = q.unit_id"
        " where q.instance_id = $1 order by q.unit_id, q.item",
        instance_id,
    )


async def snapshot(h: Harness) -> list[Any]:
    """Everything that a completion could change."""
    tables = ("interactions", "await_units", "instances", "instance_data")
    found = await h.sql(" union all ".join(f"select '{t}' || t::text as row from stepwell.{t} t" for t in tables))
    return sorted(row["row"] for row in found)
