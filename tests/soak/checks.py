"""What must hold after a soak, asked in SQL; each query returns the offenders."""

from __future__ import annotations

from collections import Counter
from typing import Any

from stepwell._core.serialization.codec import decode_value
from tests.soak.environment import Environment
from tests.support.waiting import eventually

LIVE = "status not in ('done', 'failed', 'cancelled')"

UNSETTLED = (
    "select id, machine, step, status, hold, due_at - stepwell.now() as due_in, worker_id, concurrency_key "
    "from stepwell.instances i "
    "where status = 'executing' "
    "   or status = 'runnable' and hold is null "
    "   or status = 'runnable' and hold = 'due' and due_at <= stepwell.now() "
    "   or status = 'runnable' and hold = 'key' "
    "   or status = 'awaiting_signal' and deadline <= stepwell.now()"
)

OFFENDERS = {
    "every instance has a way forward": (
        "select id, machine, status, hold, awaits, deadline, children_pending from stepwell.instances i "
        f"where {LIVE} and not case status "
        "  when 'runnable' then coalesce(hold, 'due') = 'due' "
        "  when 'awaiting_signal' then awaits <> '{}' "
        "  when 'awaiting_children' then children_pending > 0 "
        "  else false end"
    ),
    "an instance that awaits has in its inbox exactly the matching signals that it kept": (
        "select i.id, d.state -> 'kept' as kept, count(s.id) as found "
        "from stepwell.instances i join stepwell.instance_data d using (id) "
        "left join stepwell.signals s on s.instance_id = i.id and not s.consumed and s.name = any (i.awaits) "
        "where i.status = 'awaiting_signal' group by 1, 2 having count(s.id) <> (d.state -> 'kept')::integer"
    ),
    "a parent waits for exactly the children of its round that have not been joined": (
        "select p.id, p.children_pending, count(c.id) from stepwell.instances p "
        "left join stepwell.instances c on c.parent_id = p.id and c.parent_round = p.round and not c.joined "
        "where p.status = 'awaiting_children' group by p.id having p.children_pending <> count(c.id)"
    ),
    "a child that has ended is joined": (
        f"select id from stepwell.instances where parent_id is not null and not ({LIVE}) and not joined"
    ),
    "a child is joined once": (
        "select instance from soak_log where kind = 'joined' group by instance having count(*) > 1"
    ),
    "one live row per key": (
        f"select tenant, key from stepwell.instances where key is not null and {LIVE} group by 1, 2 having count(*) > 1"
    ),
    "one executing row per concurrency key": (
        "select concurrency_key from stepwell.instances where status = 'executing' and concurrency_key is not null "
        "group by 1 having count(*) > 1"
    ),
    "nothing that may never happen was written down": "select * from soak_log where kind like 'offence%'",
    "no two were inside a critical section at once, except after a lost claim": (
        "with kept as (select s.* from soak_sections s where s.ended is not null "
        "  and not s.instance = any ($1::bigint[]) "
        "  and not exists (select from soak_log l where l.kind = 'claim lost' and l.instance = s.instance "
        "                  and l.fence = s.fence)) "
        "select a.number, b.number from kept a join kept b on a.key = b.key and a.number < b.number "
        "where a.begun < b.ended and b.begun < a.ended"
    ),
    "no parent went on before its children had ended": (
        "select i.id, d.state -> 'early' from stepwell.instances i join stepwell.instance_data d using (id) "
        "where machine = 'Fan' and jsonb_array_length(coalesce(d.state -> 'early', '[]')) > 0 "
        "  and not i.id = any ($1::bigint[]) "
        "  and not exists (select from stepwell.instances c where c.parent_id = i.id and c.id = any ($1::bigint[]))"
    ),
}


async def settled(environment: Environment) -> None:
    """Wait until nothing runs or may run: what is left waits for an event or for its time."""

    async def look() -> bool:
        nonlocal busy
        busy = [dict(row) for row in await environment.sql(UNSETTLED)]
        return not busy

    busy: list[dict[str, Any]] = []
    try:
        await eventually(look, patience=90)
    except AssertionError:
        raise AssertionError(f"these can run and do not: {busy}") from None


async def ended(environment: Environment) -> bool:
    return not await environment.sql(f"select from stepwell.instances where {LIVE} limit 1")


async def check(environment: Environment, operated: set[int]) -> None:
    for promise, query in OFFENDERS.items():
        args = [sorted(operated)] if "$1" in query else []
        offenders = [dict(row) for row in await environment.sql(query, *args)]
        assert not offenders, f"{promise}: {offenders}"


async def check_signals(environment: Environment, sent: dict[int, str | None], refused: set[int]) -> None:
    """Every accepted signal arrived, or its event had; every arrival is consumed once, waits, or went with its end."""
    arrivals = await environment.sql(
        "select number, instance, signal, payload::text as payload, dedup_key from soak_log "
        "where kind = 'arrived' order by number"
    )
    payloads = {decode_value(row["payload"]) for row in arrivals}
    events = {row["dedup_key"] for row in arrivals if row["dedup_key"] is not None}
    lost = [n for n, event in sent.items() if n not in payloads and (event is None or event not in events)]
    assert not lost, f"accepted and never stored: {lost}"
    assert not payloads & refused, f"refused and stored: {payloads & refused}"
    states = await environment.sql("select id, state::text as state from stepwell.instance_data")
    consumed = {row["id"]: Counter(decode_value(row["state"]).get("consumed", [])) for row in states}
    # A done instance has no inbox; a worker that died between its commit and the drop leaves that to the pruner.
    waiting = {row["id"] for row in await environment.sql(
        "select s.id from stepwell.signals s join stepwell.instances i on i.id = s.instance_id "
        "where not s.consumed and i.status <> 'done'")}
    ends = await environment.sql("select instance, max(number) as number from soak_log where kind = 'done' group by 1")
    last_end = {row["instance"]: row["number"] for row in ends}
    for row in arrivals:
        times = consumed[row["instance"]][decode_value(row["payload"])]
        waits = row["signal"] in waiting
        dropped = last_end.get(row["instance"], 0) > row["number"]
        assert times <= 1, f"consumed {times} times: {dict(row)}"
        assert not (times and waits), f"consumed and still there: {dict(row)}"
        assert times or waits or dropped, f"lost: {dict(row)}"
