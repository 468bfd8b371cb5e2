"""`make chaos` itself: a short run passes, a seed repeats a schedule, and the checks find what they are there for."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from stepwell.testing import Harness, Scripted
from stepwell.testing.stops.slowness import Computer
from tests.chaos import invariants
from tests.chaos.conversations import KINDS, Conversation, make, points
from tests.chaos.findings import Findings
from tests.chaos.limits import BURIED, DRAINED, REPLACED
from tests.chaos.logs import Logs, unexplained, unexplained_of_server
from tests.chaos.machines import BRIEF, CREATE, MACHINES, NARROW, PACED, WIRE
from tests.chaos.recovery import Recovery, Watch
from tests.chaos.report import FOUND, INCOMPLETE, Report
from tests.chaos.schedule import FAULTS, strikes
from tests.chaos.standing import describe
from tests.chaos.workers import Place, Workers
from tests.chaos.workload import Workload
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
FEW = "kill,terminate,restart-immediate"
SHORT = ["--minutes", "0.15", "--seed", "7", "--workers", "2", "--clients", "8", "--only", FEW]
PATIENCE = 240
WORKED = "insert into public.ledger (subject, step, worker) values ('s', 'begin', $1)"
TRANSACTION = "a transaction is open on the server"


async def test_a_short_run_with_three_faults_finds_nothing_wrong() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.chaos", *SHORT, cwd=ROOT, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip

    async with asyncio.timeout(PATIENCE):
        printed, _ = await process.communicate()

    text = printed.decode()
    assert (process.returncode, "lost 0, doubled 0, stuck 0, slow 0, wrong in a log 0" in text) == (0, True), text


def test_a_seed_repeats_the_schedule_and_the_conversations() -> None:
    first, again, other = (list(islice(strikes(seed, list(FAULTS)), 50)) for seed in (7, 7, 8))
    dice = [random.Random("7") for _ in range(2)]  # noqa: S311 - not a secret

    conversations = [[make(number, die) for number in range(50)] for die in dice]

    assert (first == again, first == other) == (True, False)
    assert {strike.fault for strike in first[: len(FAULTS)]} == set(FAULTS)
    one, two = ([(c.key, c.state) for c in made] for made in conversations)
    assert one == two


@pytest.fixture
async def h(make_harness: MakeHarness) -> Harness:
    provider = Scripted(WIRE, lambda dispatch: points(dispatch.request["number"]))
    harness = await make_harness(MACHINES, transports=[provider], limits=[NARROW, PACED])
    for statement in CREATE:
        await harness.sql(statement)
    return harness


class Primary:
    """What a watch knows of replicas."""

    def __init__(self, primary: Asked) -> None:
        self.primary = primary


class Asked:
    """A server, as far as the checks need one."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self.looks = 0

    async def query(self, sql: str, *args: object, timeout: float = 0) -> list[Any]:
        self.looks += 1
        return list(await self._harness.sql(sql, *args))


async def found_in(h: Harness, *conversations: Conversation, clocks: invariants.Clocks = ()) -> Findings:
    findings = Findings()
    await invariants.check(Asked(h), list(conversations), set(), clocks, findings)  # type: ignore[arg-type]
    return findings


async def test_the_checks_find_a_lost_start_and_a_stuck_one(h: Harness) -> None:
    gone, stuck = (make_conversation("transfer", key) for key in ("gone", "stuck"))
    gone.started_at = stuck.started_at = 1.0
    await h.engine.start(stuck.machine, stuck.state, key="stuck")

    findings = await found_in(h, gone, stuck)

    assert findings.lost == ["gone has no instance"]
    assert [entry.split(",")[0] for entry in findings.stuck] == ["stuck is runnable at debit"]
    assert "name=stuck" in findings.details[0]


async def test_the_report_names_the_backend_that_locks_a_stuck_row(h: Harness) -> None:
    stuck = make_conversation("transfer", "stuck")
    started = await h.engine.start(stuck.machine, stuck.state, key="stuck")
    holder = await asyncpg.connect(h.url)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("select from stepwell.instances where id = $1 for no key update", started.id)

    [row, backend, *_] = await describe(Asked(h), [started.id])  # type: ignore[arg-type]
    await transaction.rollback()
    [freed, *_] = await describe(Asked(h), [started.id])  # type: ignore[arg-type]

    assert f"lock=held by pid {holder.get_server_pid()}" in row
    assert f"pid={holder.get_server_pid()}" in backend
    assert "state=idle in transaction" in backend
    assert freed.endswith("lock=free")
    await holder.close()


async def test_the_checks_find_a_step_that_wrote_twice_and_one_that_wrote_nothing(h: Harness) -> None:
    transfer = make_conversation("transfer", "twice")
    transfer.started_at = transfer.ended_at = 1.0
    handle = await h.engine.start(transfer.machine, transfer.state, key="twice")
    await h.drain()
    await h.sql("update public.ledger set step = 'debit' where step = 'credit'")

    findings = await found_in(h, transfer)

    assert (await handle.get()).result == transfer.expected
    assert findings.lost == ["twice ended, and its step credit wrote nothing"]
    assert findings.doubled == ["step debit of twice wrote 2 rows"]


async def test_the_checks_find_two_instances_of_one_key(h: Harness) -> None:
    transfer = make_conversation("transfer", "twice")
    transfer.started_at = transfer.ended_at = 1.0
    for _ in range(2):
        await h.engine.start(transfer.machine, transfer.state, key="twice")
        await h.drain()

    findings = await found_in(h, transfer)

    assert sorted(findings.doubled) == [
        "step credit of twice wrote 2 rows", "step debit of twice wrote 2 rows", "twice has 2 instances",
    ]  # fmt: skip


async def test_the_checks_find_an_end_that_was_reported_differently(h: Harness) -> None:
    wrong, failed = (make_conversation("transfer", key) for key in ("wrong", "failed"))
    for transfer in (wrong, failed):
        transfer.started_at = transfer.ended_at = 1.0
        await h.engine.start(transfer.machine, transfer.state, key=transfer.key)
    await h.drain()
    wrong.told, failed.told = ("done", ["debit"]), ("failed", None)

    findings = await found_in(h, wrong, failed)

    assert findings.lost == [
        f"wrong came to ['debit'], not to {wrong.expected}", "failed was told to have failed",
    ]  # fmt: skip


async def test_the_checks_find_an_account_that_lost_an_addition(h: Harness) -> None:
    await h.sql("insert into public.spans values ('key a', 1, 2), ('key a', 3, 4), ('key b', 5, 6)")
    await h.sql("insert into public.balances values ('a', 1), ('c', 1)")

    findings = await found_in(h)

    assert findings.lost == [
        "a has 1, and 2 were added", "b has None, and 1 were added", "c has 1, and None were added",
    ]  # fmt: skip


async def test_the_checks_find_too_many_executions_of_a_key_and_a_limit(h: Harness) -> None:
    await h.sql("insert into public.balances values ('a', 2)")
    await h.sql("insert into public.spans values ('key a', 1, 3), ('key a', 2, 4)")
    await h.sql("insert into public.spans select 'limit narrow', n, 10 + n from generate_series(5, 8) n")

    findings = await found_in(h)

    assert findings.doubled == [
        "key a: 2 were inside at a time, 1 may be", "limit narrow: 4 were inside at a time, 3 may be",
    ]  # fmt: skip


AT = 1_800_000_000.0  # some moment


async def begin(h: Harness, number: int, at: float, *names: str) -> list[Conversation]:
    """This many steps start at that moment of the server's clock."""
    rated = [make_conversation("rated", f"r{n} of {at}") for n in range(number)]
    book = "insert into public.ledger (subject, step, claimed_at) select $1, 'begin', to_timestamp($2)"
    for conversation in rated:
        await h.sql(book, conversation.key, at)
    return rated


async def test_the_checks_find_more_started_steps_than_a_rate_allows(h: Harness) -> None:
    rated = await begin(h, 8, AT)

    findings = await found_in(h, *rated)

    assert findings.doubled == ["rate paced: 8.0 began at once, 7.0 may"]


async def test_a_clock_change_allows_no_more_started_steps_at_another_time(h: Harness) -> None:
    ahead = [(AT, 3600), (AT + 5, 0)]
    rated = [*await begin(h, 7, AT - 1), *await begin(h, 7, AT + 3600 + 1), *await begin(h, 7, AT + 6)]
    full_buckets = await found_in(h, *rated, clocks=ahead)
    rated += await begin(h, 1, AT + 6.01)

    one_more = await found_in(h, *rated, clocks=ahead)
    no_move = await found_in(h, *rated, clocks=[(AT - 100, 3600), (AT - 90, 0), (AT + 5000, -3600)])

    assert full_buckets.doubled == []
    assert [entry.split(":")[0] for entry in one_more.doubled] == ["rate paced"]
    assert len(no_move.doubled) == 1


LEFT = {
    "a unit of questions waits": "update stepwell.await_units set status = 'waiting', finished_at = null",
    "a question is open": "update stepwell.interactions set status = 'dispatched', reply = null, finished_at = null",
    "a child that has ended is not joined": "update stepwell.instances set joined = false where parent_id is not null",
    "a unit of questions is to be cleaned up": "insert into stepwell.cleanups (unit_id) values (1)",
    "the data of an instance that is gone": "delete from stepwell.instances",
    "the inbox of an instance that is gone": "insert into stepwell.signals (instance_id, sent_at, name) "
                                             "values (-1, now(), 'item')",
    "the questions of an instance that is gone": "delete from stepwell.instances where machine = 'Asker'",
    "a question of a unit that is gone": "delete from stepwell.await_units",
}  # fmt: skip


def test_every_kind_of_leftover_is_tested() -> None:
    assert LEFT.keys() | {TRANSACTION} == invariants.LEFT_BEHIND.keys()


@pytest.mark.parametrize("what", LEFT)
async def test_the_checks_find_leftover_rows(h: Harness, what: str) -> None:
    conversations = [make_conversation(kind, kind) for kind in ("tree", "asker")]
    for conversation in conversations:
        conversation.started_at = conversation.ended_at = 1.0
        await h.engine.start(conversation.machine, conversation.state, key=conversation.key)
    await h.drain()
    clean = await found_in(h, *conversations)
    await h.sql(LEFT[what])

    findings = await found_in(h, *conversations)

    assert (clean.stuck, clean.lost, clean.doubled) == ([], [], [])
    assert [entry for entry in findings.stuck if entry.startswith(f"{what}: ")] != []


async def test_the_checks_find_a_transaction_that_was_left_open(h: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    longest = f"{invariants.LONGEST_TRANSACTION:g} s"
    at_once = invariants.LEFT_BEHIND[TRANSACTION].replace(longest, "0 s")
    monkeypatch.setitem(invariants.LEFT_BEHIND, TRANSACTION, at_once)
    holder = await asyncpg.connect(h.url)
    clean = await found_in(h)
    await holder.execute("begin")

    findings = await found_in(h)

    assert clean.stuck == []
    assert findings.stuck == [f"{TRANSACTION}: {holder.get_server_pid()}"]
    await holder.close()


async def test_the_checks_find_wrongly_deleted_rows(h: Harness) -> None:
    await h.sql("insert into public.pruned select n, 'key' || n, 'live', 'Rated', 'done', interval '-1 s', false "
                "from generate_series(1, 6) n")  # fmt: skip
    await h.sql("update public.pruned set early = null where id = 2")
    await h.sql("update public.pruned set early = '3 s' where id = 3")
    await h.sql("update public.pruned set status = 'executing' where id = 4")
    await h.sql("update public.pruned set had_live_parent = true where id = 5")
    await h.sql("update public.pruned set key_scope = 'forever' where id = 6")

    findings = await found_in(h)

    assert findings.lost == [
        "key2 was deleted, and is to be kept for ever", "key3 was deleted, and was to be kept for 00:00:03 more",
        "key4 was deleted, and was executing", "key5 was deleted, and its parent had not ended",
        "key6 was deleted, and its key has no tombstone",
    ]  # fmt: skip


async def test_the_trigger_records_deleted_rows(h: Harness) -> None:
    rated = make_conversation("rated", "brief")
    rated.started_at = 1.0
    started = await h.engine.start(rated.machine, rated.state, key="brief", key_scope="forever")
    await h.drain()
    await h.sql("delete from stepwell.instances")

    findings = await found_in(h, rated)
    [row] = await h.sql("select id, key, key_scope, machine, status, early > '1 s' as is_early from public.pruned")

    assert tuple(row) == (started.id, "brief", "forever", "Rated", "done", True)
    assert [entry.split(" 00:")[0] for entry in findings.lost] == ["brief was deleted, and was to be kept for"]


async def test_the_checks_find_rows_that_were_not_deleted(h: Harness) -> None:
    rated = make_conversation("rated", "old")
    rated.started_at = rated.ended_at = 1.0
    started = await h.engine.start(rated.machine, rated.state, key="old")
    await h.drain()
    await h.sql("update stepwell.instances set finished_at = now() - $1::interval - interval '1 minute'", BRIEF)

    findings = await found_in(h, rated)

    assert findings.stuck == [f"Rated #{started.id} should have been deleted 60 s ago"]


async def test_a_failover_that_loses_replicated_rows_is_reported(h: Harness) -> None:
    findings = Findings()
    workload = Workload(h.engine, Computer(), findings, 1, 0)
    gone, open_, late, kept = (make_conversation("transfer", key) for key in ("gone", "open", "late", "kept"))
    workload.conversations = [gone, open_, late, kept]
    await h.engine.start(kept.machine, kept.state, key="kept")
    await h.drain()
    await h.engine.start(open_.machine, open_.state, key="open")
    for conversation, started, ended in ((gone, 1.0, None), (open_, 1.0, 2.0), (late, 9.0, None), (kept, 1.0, 2.0)):
        conversation.started_at, conversation.ended_at = started, ended

    again = await workload.lose_since(5.0, Asked(h))

    assert findings.lost == [
        "gone was started and replicated, and is gone after the failover",
        "open had ended and was replicated, and is open after the failover",
    ]  # fmt: skip
    assert (again, late.started_at, kept.ended_at) == (1, None, 2.0)


def test_a_recovery_longer_than_the_settings_allow_is_reported() -> None:
    at_most = BURIED.on(slowness=1)
    quick, dark = (Recovery(0.1, seconds, 0.1, workers=0.1, at_most=at_most) for seconds in (8.0, 138.0))
    asleep = Recovery(0.1, 0.1, 0.1, workers=138.0, at_most=at_most)

    assert quick.problems("strike 1") == []
    assert dark.problems("strike 2") == ["strike 2: the recovery took 138.0 s, 12.0 s may"]
    assert asleep.problems("strike 3") == ["strike 3: until each worker worked took 138.0 s, 12.0 s may"]
    assert (REPLACED + DRAINED).on(2) == 3 + 2 * 14


def test_every_fault_has_a_limit_far_below_two_minutes_of_outage() -> None:
    longest = {name: fault.at_most.on(slowness=3) for name, fault in FAULTS.items()}

    assert max(longest.values()) < 40


async def test_a_worker_that_commits_nothing_is_waited_for(h: Harness) -> None:
    server = Asked(h)
    watch = Watch(Primary(server))  # type: ignore[arg-type]
    seen = []
    await h.sql(WORKED, 2)
    looking = asyncio.create_task(watch.all_work(lambda: {1, 2}, time.monotonic(), PATIENCE))
    for worker in (1, 1, 2):
        server.looks = 0
        await eventually(lambda: server.looks >= 2)
        seen.append(looking.done())
        await h.sql(WORKED, worker)

    assert await looking is not None
    assert await watch.all_work(lambda: {3}, time.monotonic(), 0.5) is None
    assert seen == [False, False, False]


def test_log_errors_that_no_fault_explains_are_reported() -> None:
    lines = [
        "worker 17 ready: default=20",
        "05:47:40.813 WARNING stepwell: the database is unavailable (claimer: lost); retrying",
        "05:47:40.813 ERROR   stepwell: worker 17: the lease is lost; 2 steps were stopped; registering again",
        "05:47:41.000 ERROR   stepwell: Transfer.debit #7: no outcome could be committed: refused",
        "05:47:41.000 ERROR   asyncio: Task exception was never retrieved",
        "Traceback (most recent call last):",
        "RuntimeWarning: coroutine 'x' was never awaited",
    ]
    server = [
        "2026-11-19 05:48:38 UTC [1] ERROR:  canceling statement due to lock timeout",
        "2026-11-19 05:48:38 UTC [1] ERROR:  cannot execute UPDATE in a read-only transaction",
        "2026-11-19 05:48:38 UTC [1] FATAL:  terminating connection due to administrator command",
        "2026-11-19 05:48:38 UTC [1] ERROR:  deadlock detected",
        "2026-11-19 05:48:38 UTC [1] PANIC:  could not write to file \"pg_wal/xlogtemp.1\": No space left on device",
        "2026-11-19 05:48:39 UTC [1] ERROR:  could not access status of transaction 0",
        "2026-11-19 05:48:39 UTC [1] DETAIL:  Could not write to file \"pg_notify/0\": No space left on device.",
    ]

    assert unexplained(lines, {"stop"}) == lines[3:]
    assert unexplained(lines, {"kill"}) == lines[2:]
    assert unexplained_of_server(server, {"read-only", "fill"}) == server[3:4]
    last = "; ".join([server[5], server[6].partition("DETAIL:  ")[2]])
    assert unexplained_of_server(server, {"restart-fast"}) == [server[1], *server[3:5], last]


def test_a_log_is_read_from_fault_to_fault(tmp_path: Path) -> None:
    log = tmp_path / "worker-0.log"
    log.write_text("05:47:41.000 ERROR   stepwell: one\n05:47:41.000 ERR")
    logs = Logs(tmp_path)

    first = logs.unexplained([])
    log.write_text(log.read_text() + "OR   stepwell: two\n")

    assert first == ["worker-0: 05:47:41.000 ERROR   stepwell: one"]
    assert logs.unexplained([]) == ["worker-0: 05:47:41.000 ERROR   stepwell: two"]


@pytest.mark.parametrize(
    ("code", "is_asked", "was_ready", "is_struck", "finds"),
    [
        (3, False, False, True, False), (3, False, False, False, True), (3, False, True, True, True),
        (1, False, False, True, True), (0, True, True, False, False), (-9, True, True, False, False),
        (1, True, True, False, True),
    ],
)  # fmt: skip
def test_a_process_that_ends_by_itself_is_reported(
    tmp_path: Path, *, code: int, is_asked: bool, was_ready: bool, is_struck: bool, finds: bool
) -> None:
    findings = Findings()
    workers = Workers(0, None, tmp_path, findings)  # type: ignore[arg-type]
    workers.is_struck = is_struck
    place = Place(0, None, is_expected_to_end=is_asked)  # type: ignore[arg-type]

    workers.judge(place, code, was_ready=was_ready)

    assert bool(findings.logged) == finds


def test_the_report_names_each_fault_that_did_not_run() -> None:
    chosen = [name for name in FAULTS if name != "stop"]
    report = Report("head", Findings(), minutes=15, chosen=chosen)
    report.lacking["fill"] = "a tmpfs needs root"
    report.missed["failover"] = "the standby did not stream within 20 s"
    report.impossible.append("strike 7: drain beside freeze could not happen: NotNow: no worker process runs")
    for name in set(chosen) - {"fill", "failover", "dark", "kill"}:
        report.recoveries[name].append((1, Recovery(0.1, 0.1, 0.1)))
    report.companions["terminate"] += 1

    lines = report.lines()

    assert [line for line in lines if line.startswith(("did not run", "strike", "incomplete"))] == [
        "did not run: kill: the time was over before its turn",
        "did not run beside another fault: drain: the seed did not choose it, or see below",
        "did not run: stop: not chosen by --only",
        "did not run: fill: a tmpfs needs root",
        "did not run: failover: the standby did not stream within 20 s",
        "did not run: dark: the time was over before its turn",
        "strike 7: drain beside freeze could not happen: NotNow: no worker process runs",
        "incomplete: 3 of 17 faults did not run",
    ]


def test_a_long_run_fails_if_a_fault_that_can_run_did_not() -> None:
    codes = []
    for minutes, chosen in ((15, ["kill", "fill"]), (5, ["kill", "fill"]), (15, ["kill"])):
        report = Report("head", Findings(), minutes=minutes, chosen=chosen)
        report.recoveries["kill"].append((1, Recovery(0.1, 0.1, 0.1)))
        codes.append(report.exit_code)
    report.findings.slow.append("strike 1: the recovery took 138.0 s, 12.0 s may")

    assert codes == [INCOMPLETE, 0, 0]
    assert report.exit_code == FOUND


def make_conversation(kind: str, key: str) -> Conversation:
    return next(each for each in KINDS if each.__name__ == f"_{kind}")(key, random.Random(1))  # noqa: S311 - no secret
