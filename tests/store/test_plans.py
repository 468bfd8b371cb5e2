"""Plans of the hot statements: the one good plan, on a deep and skewed backlog, whatever the statistics say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import asyncpg
import pytest

from stepwell._store.testing import databases
from tests.store import backlog
from tests.store.cases import CASES, SESSIONS, Case, Sample, look
from tests.store.conftest import Deep
from tests.store.plans import Bench, Plan, benched, without_autovacuum

SMALL = 37_600  # half of the deep backlog: enough to tell an index from a scan
TABLES = {"instances", "instance_data", "signals", "tombstones"}
JOINS = {"Hash Join", "Merge Join"}
STEADY = [case for case in CASES if not case.by_statistics]


@pytest.fixture
def url(new_url: str) -> str:
    """Pages are counted."""
    return new_url


@pytest.fixture
async def benches() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


def check(case: Case, plan: Plan) -> None:
    """The plan goes through its indexes, joins by nested loops, and touches a bounded number of pages per row."""
    assert not plan.seq_scans() & TABLES
    assert not plan.kinds() & JOINS
    assert plan.indexes("instances") <= case.indexes
    assert plan.indexes("signals") <= case.inbox
    assert plan.buffers <= case.per_row * case.size + case.besides
    assert plan.rows_handled() <= 40 * case.size + 100, "some loop in it is quadratic"


async def test_the_backlog_is_as_deep_as_it_says(deep: Deep) -> None:
    print(f"the backlog took {deep.seconds:.1f} s")  # noqa: T201 - about 1 s on two idle cores, 10 with `make depth`

    rows = await databases.query(
        deep.url, "select status in ('done', 'failed', 'cancelled') as ended, status = 'executing' as executes, "
        "status = 'awaiting_signal' as parked, hold, count(*) as rows from stepwell.instances group by 1, 2, 3, 4"
    )  # fmt: skip

    assert {(row["ended"], row["executes"], row["parked"], row["hold"]): row["rows"] for row in rows} == {
        (False, False, False, None): backlog.RUNNABLE,
        (False, False, False, "due"): backlog.FUTURE,
        (False, False, False, "key"): backlog.BLOCKED * 4 // 10,
        (False, False, False, "limit"): backlog.BLOCKED * 3 // 10,
        (False, False, False, "rate"): backlog.BLOCKED * 3 // 10,
        (True, False, False, None): backlog.TERMINAL,
        (False, True, False, None): backlog.EXECUTING,
        (False, False, True, None): backlog.PARKED,
    }


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_statement_has_its_one_good_plan_on_a_deep_backlog(deep: Deep, case: Case) -> None:
    arguments = case.arguments(deep.given, case.size)

    async with benched(deep.url, case.settings) as bench:
        await bench.vacuum()
        plan = await bench.explain(case.name, *arguments)

    check(case, plan)
    assert plan.indexes("instances") == case.indexes
    assert plan.indexes("signals") == case.inbox


async def connect_all(url: str, benches: AsyncExitStack) -> dict[str, Bench]:
    return {name: await benches.enter_async_context(benched(url, settings)) for name, settings in SESSIONS.items()}


@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "never analyzed"])
async def test_plans_made_on_an_empty_table_stay_good_while_it_fills(
    url: str, benches: AsyncExitStack, *, analyzed: bool
) -> None:
    await without_autovacuum(url)
    if analyzed:
        await backlog.analyze(url)
    by_session = await connect_all(url, benches)
    for case in STEADY:
        await by_session[case.session].warm_up(case.name, *case.arguments(Sample([], [], 0), case.size))

    await backlog.build(url, SMALL)

    given = await look(url)
    for case in STEADY:
        check(case, await by_session[case.session].explain(case.name, *case.arguments(given, case.size)))


async def test_plans_from_statistics_of_a_full_table_are_good_when_it_is_empty(
    url: str, benches: AsyncExitStack
) -> None:
    await without_autovacuum(url)
    await backlog.build(url, SMALL)
    await backlog.analyze(url)
    given = await look(url)
    connection = await asyncpg.connect(url)
    for table in backlog.TABLES:
        await connection.execute(f"delete from stepwell.{table}")
    await connection.execute(f"vacuum (truncate off) {', '.join(f'stepwell.{table}' for table in TABLES)}")
    await connection.close()

    by_session = await connect_all(url, benches)

    for case in STEADY:
        check(case, await by_session[case.session].explain(case.name, *case.arguments(given, case.size)))
