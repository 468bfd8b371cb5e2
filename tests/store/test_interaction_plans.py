"""Plans of the statements about interactions: the one good plan, with any number of them and any statistics."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack

import pytest

from stepwell._store.testing import databases
from tests.store import interaction_backlog
from tests.store.cases import SESSIONS
from tests.store.conftest import in_own_loop
from tests.store.interaction_backlog import Questions
from tests.store.interaction_cases import CASES, TABLES, QuestionCase
from tests.store.plans import Bench, Plan, benched, without_autovacuum

JOINS = {"Hash Join", "Merge Join"}


@pytest.fixture
def url(new_url: str) -> str:
    """Pages are counted."""
    return new_url


@pytest.fixture(scope="module")
def deep_url(server_url: str) -> Iterator[str]:
    """A deep backlog of interactions, built once and only read or rolled back."""
    name = f"stepwell_test_{secrets.token_hex(6)}"
    yield in_own_loop(_build(server_url, name))
    in_own_loop(databases.drop(server_url, name))


async def _build(server_url: str, name: str) -> str:
    await databases.clone(server_url, await databases.ensure_template(server_url), name)
    url = databases.sibling(server_url, name)
    await without_autovacuum(url)
    await interaction_backlog.build(url)
    await interaction_backlog.analyze(url)
    return url


@pytest.fixture
async def benches() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


async def test_a_statement_about_interactions_has_its_one_good_plan(deep_url: str) -> None:
    given = await interaction_backlog.sample(deep_url)
    wrong = []
    for session, settings in SESSIONS.items():
        async with benched(deep_url, settings) as bench:
            for case in CASES:
                if case.session == session:
                    await bench.vacuum()
                    plan = await bench.explain(case.name, *case.arguments(given, case.size))
                    wrong += problems(case, plan)

    assert not wrong, "\n".join(wrong)


def problems(case: QuestionCase, plan: Plan, *, exact: bool = True) -> list[str]:
    """What is wrong with a plan: it goes through its indexes, joins by nested loops, and touches a bounded number of
    pages per row."""
    through = set().union(*(plan.indexes(table) for table in TABLES))
    most = case.per_row * case.size + case.besides
    wrong = {
        f"scans {plan.seq_scans()}": plan.seq_scans() & set(TABLES),
        f"joins by {plan.kinds() & JOINS}": plan.kinds() & JOINS,
        f"comes through {sorted(through)}": through - case.indexes or (exact and case.indexes - through),
        f"touches {plan.buffers} pages, not {most}": plan.buffers > most,
        f"handles {plan.rows_handled()} rows: some loop in it is quadratic": plan.rows_handled() > 40 * case.size + 200,
    }
    return [f"{case} {problem}" for problem, found in wrong.items() if found]


@pytest.mark.parametrize("analyzed", [True, False], ids=["analyzed", "never analyzed"])
async def test_plans_made_on_empty_interaction_tables_stay_good_while_they_fill(
    url: str, benches: AsyncExitStack, *, analyzed: bool
) -> None:
    await without_autovacuum(url)
    if analyzed:
        await interaction_backlog.analyze(url)
    by_session: dict[str, Bench] = {
        name: await benches.enter_async_context(benched(url, settings)) for name, settings in SESSIONS.items()
    }
    for case in CASES:
        await by_session[case.session].warm_up(case.name, *case.arguments(Questions(), case.size))

    await interaction_backlog.build(url, 20)

    given = await interaction_backlog.sample(url)
    wrong = []
    for case in CASES:
        plan = await by_session[case.session].explain(case.name, *case.arguments(given, case.size))
        wrong += problems(case, plan, exact=False)
    assert not wrong, "\n".join(wrong)


async def test_a_unit_with_a_long_queue_is_read_in_one_pass(deep_url: str) -> None:
    given = await interaction_backlog.sample(deep_url)
    rows = interaction_backlog.QUEUED // interaction_backlog.SHARE + interaction_backlog.WINDOW

    async with benched(deep_url, SESSIONS["worker"]) as bench:
        plan = await bench.explain("await_units/load", [given.big])

    assert plan.rows_handled() <= 6 * rows
    assert plan.buffers <= rows + 100

