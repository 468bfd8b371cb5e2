"""Workers that died, as their rows tell it: what the database has after a SIGKILL, without the SIGKILL."""

from __future__ import annotations

import os
from collections.abc import Sequence

from stepwell import Handle
from stepwell._lease.host_identity import this_host
from stepwell.testing import Harness

DEAD_PROCESS = "1"  # no process of ours started one tick after boot: the pid is another's by now


async def abandon(
    harness: Harness,
    handles: Sequence[Handle],
    *,
    begun: bool = True,
    waiting: bool = False,
    has_left: bool = False,
    host: str | None = None,
    alive: bool = False,
) -> int:
    """Leave instances executing in the hands of a dead worker, of this host unless told; returns its id."""
    place = this_host()
    [row] = await harness.sql(
        """insert into stepwell.workers (host, boot, pid, process, release, queues, machines, lease_until, has_left,
                                         begun_at, waiting)
           values ($1, $2, $3, $4, 'gone', '{}', '{}', case when $5 then 'infinity' else '-infinity' end::timestamptz,
                   $6, case when $7 then 'infinity' else '-infinity' end::timestamptz, $8::bigint[])
           returning id""",
        host or place.host, place.boot, os.getpid(), DEAD_PROCESS, alive, has_left, begun,
        [handle.id for handle in handles] if waiting else [],
    )  # fmt: skip
    await harness.sql(
        """update stepwell.instances set status = 'executing', worker_id = $1, claimed_at = now(), fence = fence + 1,
                                         hold = null
           where id = any ($2::bigint[])""",
        row["id"], [handle.id for handle in handles],
    )  # fmt: skip
    return int(row["id"])


async def let_reap(harness: Harness) -> None:
    """Let every live worker have held its lease for ever, so that it may act as reaper at once."""
    await harness.sql("update stepwell.workers set steady_since = '-infinity' where lease_until > now()")
