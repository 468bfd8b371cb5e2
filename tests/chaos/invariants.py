"""What must hold when all is calm again, by outcomes and by SQL."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import inf
from typing import Any

import msgspec

from tests.chaos.conversations import WRONG, Conversation
from tests.chaos.findings import Findings
from tests.chaos.limits import LOCKS
from tests.chaos.machines import NARROW, PACED, PATIENCE
from tests.chaos.servers import Server
from tests.chaos.standing import describe
from tests.features.pipelines.streams import BROKEN as BROKEN_PIPELINES
from tests.support.asked import BROKEN as BROKEN_QUESTIONS

ENDS = """
select i.key, i.status, false as is_deleted, d.result::text as result, d.error ->> 'type' as error,
       d.error ->> 'message' as message
from stepwell.instances i join stepwell.instance_data d using (id)
where i.key = any ($1)
union all
select p.key, p.status, true, null, null, null from public.pruned p where p.key = any ($1)
"""
OPEN = """
select id, coalesce(key, machine || ' #' || id) || ' is ' || status || coalesce(', held by ' || hold, '')
       || ' at ' || step || coalesce(', its worker ' || worker_id, '')
       || ', due for ' || round(extract(epoch from clock_timestamp() - due_at)) || ' s' as problem
from stepwell.instances where finished_at is null order by id limit 50
"""
OPEN_AND_LATE = """
select count(*) as number,
       count(*) filter (where coalesce(deadline, due_at) > clock_timestamp() + interval '30 minutes') as late
from stepwell.instances where finished_at is null
"""
LONGEST_TRANSACTION = LOCKS + PATIENCE.total_seconds()  # seconds; a transactional step has as long as its own time
PRUNED_WITHIN = 10.0  # seconds; the pruner runs every two
LEFT_BEHIND = {
    "a unit of questions waits": "select id from stepwell.await_units where status = 'waiting'",
    "a question is open": "select id from stepwell.interactions where finished_at is null",
    "a child that has ended is not joined": (
        "select id from stepwell.instances where parent_id is not null and finished_at is not null and not joined"
    ),
    "a transaction is open on the server": (
        "select pid from pg_stat_activity where datname = current_database() and state like 'idle in transaction%' "
        f"and xact_start < clock_timestamp() - interval '{LONGEST_TRANSACTION:g} s'"
    ),
    "a unit of questions is to be cleaned up": "select unit_id from stepwell.cleanups",
    "the data of an instance that is gone": (
        "select id from stepwell.instance_data d where not exists (select from stepwell.instances i where i.id = d.id)"
    ),
    "the inbox of an instance that is gone": (
        "select instance_id from stepwell.signals s "
        "where not exists (select from stepwell.instances i where i.id = s.instance_id)"
    ),
    "the questions of an instance that is gone": (
        "select id from stepwell.await_units u "
        "where not exists (select from stepwell.instances i where i.id = u.instance_id)"
    ),
    "a question of a unit that is gone": (
        "select id from stepwell.interactions q "
        "where not exists (select from stepwell.await_units u where u.id = q.unit_id)"
    ),
}
# The rows that the pruner must have deleted by now, and those that it has deleted.
OVERDUE = f"""
select i.machine || ' #' || i.id || ' should have been deleted '
       || round(extract(epoch from clock_timestamp() - i.finished_at - m.retention)) || ' s ago' as problem
from stepwell.instances i join stepwell.machines m on m.name = i.machine and m.active
where i.finished_at < clock_timestamp() - m.retention - interval '{PRUNED_WITHIN:g} s'
  and not exists (select from stepwell.instances p where p.id = i.parent_id and p.finished_at is null)
order by i.id limit 50
"""
PRUNED_WRONGLY = """
select what || ' was deleted, and ' || problem as problem
from (select coalesce(key, machine || ' #' || id) as what,
             case when early is null then 'is to be kept for ever'
                  when early > interval '0' then 'was to be kept for ' || early || ' more'
                  when status not in ('done', 'failed', 'cancelled') then 'was ' || status
                  when had_live_parent then 'its parent had not ended'
                  when key_scope = 'forever'
                       and not exists (select from stepwell.tombstones t where t.key = p.key)
                    then 'its key has no tombstone' end as problem
      from public.pruned p) found
where problem is not null order by 1 limit 50
"""
LEDGER = "select subject, step, count(*) as number from public.ledger group by 1, 2"
BALANCES = "select account, amount from public.balances"
ADDED = "select substr(guard, 5) as account, count(*) as number from public.spans where guard like 'key %' group by 1"
SECONDS = (
    "select extract(epoch from claimed_at)::float8 as at from public.ledger where step = 'begin' order by claimed_at"
)
INDEX_ITEMS = "create index on stepwell.instances (continues_unit_id) where continues_unit_id is not null"
LONGEST_QUERY = 300.0
TOKEN_SLACK = 2.0  # tokens: a bucket counts from when its claim began
Clocks = Sequence[tuple[float, int]]  # when the server's clock was moved, and by how much it was off from then on


async def check(
    server: Server, conversations: list[Conversation], ambiguous: set[str], clocks: Clocks, findings: Findings
) -> None:
    """Check everything once the run is calm."""
    await _check_ends(server, conversations, ambiguous, findings)
    await _check_ledger(server, conversations, findings)
    await _check_guards(server, findings)
    await _check_tokens(server, clocks, findings)
    await _check_pruned(server, findings)
    open_ = await server.query(OPEN)
    findings.stuck += [row["problem"] for row in open_]
    if open_:
        findings.details += await describe(server, [row["id"] for row in open_])
    for what, sql in LEFT_BEHIND.items():
        findings.stuck += [f"{what}: {row[0]}" for row in await server.query(sql)]
    await server.query(INDEX_ITEMS)
    await server.query("analyze")
    broken = await server.query(f"{BROKEN_QUESTIONS} union all {BROKEN_PIPELINES}", timeout=LONGEST_QUERY)
    findings.doubled += [row["problem"] for row in broken]


async def _check_ends(
    server: Server, conversations: list[Conversation], ambiguous: set[str], findings: Findings
) -> None:
    """Each conversation has one instance, which is done with the result that was expected."""
    rows = await server.query(ENDS, [c.key for c in conversations])
    found: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        found[row["key"]].append(row)
    for c in conversations:
        instances = found[c.key]
        if len(instances) > 1:
            findings.doubled.append(f"{c.key} has {len(instances)} instances")
        if not instances:
            (findings.stuck if c.started_at is None else findings.lost).append(f"{c.key} has no instance")
        if c.told is not None:
            status, result = c.told
            _check_end(c, status, result, ambiguous, findings)
        for row in instances[:1]:
            _check_row(c, row, ambiguous, findings)


def _check_row(c: Conversation, row: Any, ambiguous: set[str], findings: Findings) -> None:
    if row["status"] in ("failed", "cancelled"):
        findings.lost.append(f"{c.key} has {row['status']}: {row['error']}: {row['message']}")
    elif row["status"] == "done" and not row["is_deleted"]:
        _check_end(c, "done", msgspec.json.decode(row["result"]), ambiguous, findings)
        if c.ended_at is None:
            findings.stuck.append(f"{c.key} is done, and its client was not told")


def _check_end(c: Conversation, status: str, result: Any, ambiguous: set[str], findings: Findings) -> None:
    if status == "done" and not _is_expected(c, result, ambiguous):
        findings.lost.append(f"{c.key} came to {str(result)[:200]}, not to {c.expected}")
    elif status != "done":
        findings.lost.append(f"{c.key} was told to have {status}")


def _is_expected(c: Conversation, result: Any, ambiguous: set[str]) -> bool:
    if c.name in ("Asker", "ranking") and isinstance(result, list):
        result = [_settled(c, number, value, ambiguous) for number, value in enumerate(result)]
    return bool(result == c.expected)


def _settled(c: Conversation, number: int, value: Any, ambiguous: set[str]) -> Any:
    """The reply, or what it should have been if a failover let the second one in."""
    if f"{c.key}/{number}" not in ambiguous:
        return value
    return [value[0], value[1] % WRONG] if isinstance(value, list) else value % WRONG


async def _check_ledger(server: Server, conversations: list[Conversation], findings: Findings) -> None:
    """Each transactional step of an ended instance is in the ledger once, and no other is."""
    rows = await server.query(LEDGER)
    booked = {(row["subject"], row["step"]): row["number"] for row in rows}
    wanted = {(subject, step) for c in conversations for subject, steps in c.steps.items() for step in steps}
    ended = {(subject, step) for c in conversations if c.ended_at is not None
             for subject, steps in c.steps.items() for step in steps}  # fmt: skip
    findings.lost += [f"{subject} ended, and its step {step} wrote nothing" for subject, step in ended - booked.keys()]
    for (subject, step), number in booked.items():
        if number > 1 or (subject, step) not in wanted:
            findings.doubled.append(f"step {step} of {subject} wrote {number} rows")
    balances = {row["account"]: row["amount"] for row in await server.query(BALANCES)}
    added = {row["account"]: row["number"] for row in await server.query(ADDED)}
    for account in sorted(balances.keys() | added.keys()):
        if balances.get(account) != added.get(account):
            findings.lost.append(f"{account} has {balances.get(account)}, and {added.get(account)} were added")


async def _check_guards(server: Server, findings: Findings) -> None:
    """No more executed in a key, or a limit, than it admits."""
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for row in await server.query("select guard, begun, ended from public.spans"):
        spans[row["guard"]] += [(row["begun"], 1), (row["ended"], -1)]
    for guard, moments in spans.items():
        most = NARROW.n if guard.startswith("limit ") else 1
        inside = highest = 0
        for _, change in sorted(moments):
            inside += change
            highest = max(highest, inside)
        if highest > most:
            findings.doubled.append(f"{guard}: {highest} were inside at a time, {most} may be")


async def _check_tokens(server: Server, clocks: Clocks, findings: Findings) -> None:
    """In no stretch of time began more than the bucket holds and gets. A move of the clock may fill the bucket, so that
    a stretch ends there. Nothing else may: what a failover loses of a bucket, it loses of the ledger too."""
    moments = [row["at"] for row in await server.query(SECONDS)]
    allowed = PACED.burst + TOKEN_SLACK
    rate = PACED.n / PACED.per.total_seconds()
    for era in _eras(moments, clocks):
        lowest = 0.0  # the fewest tokens ever: the number of starts, less the tokens that accrued
        most = 0.0
        for number, at in enumerate(era):
            have = number - rate * (at - era[0])
            lowest = min(lowest, have)
            most = max(most, have + 1 - lowest)
        if most > allowed:
            findings.doubled.append(f"rate {PACED.name}: {most:.1f} began at once, {allowed} may")


def _eras(moments: Iterable[float], clocks: Clocks) -> list[list[float]]:
    """Moments of the server's clock, in order, by the times between two moves of that clock."""
    starts = [-inf, *(at for at, _ in clocks)]
    ends = [*starts[1:], inf]
    offsets = [0, *(offset for _, offset in clocks)]
    eras: list[list[float]] = [[] for _ in starts]

    def distance(era: int, moment: float) -> float:
        """By how much a moment lies outside of that era."""
        return max(starts[era] - (moment - offsets[era]), moment - offsets[era] - ends[era], 0)

    for moment in moments:
        eras[min(range(len(eras)), key=lambda era: distance(era, moment))].append(moment)
    return [era for era in eras if era]


async def _check_pruned(server: Server, findings: Findings) -> None:
    """Every deleted row was due for deletion, and every due row was deleted."""
    findings.lost += [row["problem"] for row in await server.query(PRUNED_WRONGLY)]
    findings.stuck += [row["problem"] for row in await server.query(OVERDUE)]


def by_kind(conversations: list[Conversation]) -> Counter[str]:
    return Counter(c.name for c in conversations)
