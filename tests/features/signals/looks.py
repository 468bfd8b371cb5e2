"""What the tests of this folder read beside the API: rows that no call shows."""

from __future__ import annotations

import json
from typing import Any

from stepwell.testing import Harness


async def inbox(h: Harness, instance_id: int) -> list[tuple[str, bool]]:
    """The stored signals of an instance in arrival order: name, and whether it is consumed."""
    rows = await h.sql("select name, consumed from stepwell.signals where instance_id = $1 order by id", instance_id)
    return [(row["name"], row["consumed"]) for row in rows]


async def count(h: Harness, table: str) -> int:
    """How many rows a table of the engine has."""
    [row] = await h.sql(f"select count(*) from stepwell.{table}")
    return int(row["count"])


async def operated(h: Harness, instance_id: int) -> dict[str, Any]:
    """What an operator did to an instance last."""
    [row] = await h.sql("select operated from stepwell.instance_data where id = $1", instance_id)
    return dict(json.loads(row["operated"]))
