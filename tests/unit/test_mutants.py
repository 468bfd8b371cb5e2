"""The mutations of `make mutants` fit the tree: a text that has changed is noticed here, not in the next long run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.quality.mutants.__main__ import read_report
from tests.quality.mutants.mutation import GRANTS, ROOT, SCHEMA, Mutation, MutationError, for_any_schema
from tests.quality.mutants.mutations import MUTATIONS

NAMED = pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)


@NAMED
def test_a_mutations_text_is_found_once_and_replaced_by_another(mutation: Mutation) -> None:
    mutation.check(ROOT)

    assert mutation.find != mutation.replace


@NAMED
def test_the_tests_that_a_mutation_names_exist(mutation: Mutation) -> None:
    for test in mutation.tests:
        path, _, function = test.partition("::")
        assert (ROOT / path).is_file(), path
        assert not function or re.search(rf"def {function}\(", (ROOT / path).read_text()), test


def test_mutations_have_unique_names() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)


def test_a_text_that_does_not_occur_exactly_once_is_refused() -> None:
    right = Mutation("reap without a limit", "instances/reap", "where d.id = any (array[r.id])", "where true", ())
    right.check(ROOT)

    for wrong in (
        replace(right, find="no such text"), replace(right, find="\n"), replace(right, place="no/where"),
        replace(right, place="stepwell.signal"), replace(right, place="stepwell.nothing"),
    ):  # fmt: skip
        with pytest.raises(MutationError, match=r"^reap without a limit: "):
            wrong.check(ROOT)


def test_a_statement_with_a_function_is_mutated_in_both(tmp_path: Path) -> None:
    [mutation] = [mutation for mutation in MUTATIONS if mutation.name == "deliver without a lock"]
    assert mutation.statement is not None
    paths = (GRANTS, SCHEMA, mutation.statement)
    before = {path: (ROOT / path).read_text() for path in paths}
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(before[path])

    mutation.apply(tmp_path)

    after = {path: (tmp_path / path).read_text() for path in paths}
    find, replace = for_any_schema(mutation.find), for_any_schema(mutation.replace)
    assert after[mutation.statement] == before[mutation.statement].replace(find, replace)
    assert after[GRANTS].startswith(f"{before[GRANTS]}\nCREATE OR REPLACE FUNCTION stepwell._signals_deliver(")
    assert mutation.find not in after[GRANTS]
    assert after[SCHEMA] == before[SCHEMA]


REPORT = """<testsuites><testsuite>
<testcase classname="tests.a.test_one" name="test_passes"/>
<testcase classname="tests.a.test_one" name="test_skips"><skipped message="no node"/></testcase>
<testcase classname="tests.a.test_one" name="test_sees_it"><failure message="assert 1 == 2">…</failure></testcase>
<testcase classname="tests.a.test_one" name="test_without_it">
  <failure message="AssertionError: signals/deliver has no 'for no key update' any more">…</failure></testcase>
</testsuite></testsuites>"""


def test_an_error_of_a_fixture_at_the_end_is_a_failure() -> None:
    error = '<error message="failed on teardown with &quot;AssertionError&quot;"/>'
    case = f'<testcase classname="tests.a.test_one" name="test_sees_it">{error}</testcase>'

    assert read_report(f"<testsuite>{case}</testsuite>") == (0, ("test_one::test_sees_it",), "")


def test_a_failure_in_the_setup_of_a_test_catches_no_mutation() -> None:
    assert read_report(REPORT) == (1, ("test_one::test_sees_it",), "")


@pytest.mark.parametrize(("named", "problem"), [
    ('classname="tests.a.test_one" name="test_sees_it"', "error"),
    ('classname="tests.store.test_statements" name="test_postgres_prepares_every_statement[worker]"', "failure"),
], ids=["an error of a fixture", "a statement that is no SQL"])  # fmt: skip
def test_a_mutation_that_is_invalid_sql_catches_nothing(named: str, problem: str) -> None:
    _, _, trouble = read_report(f'<testsuite><testcase {named}><{problem} message="…"/></testcase></testsuite>')

    assert trouble.startswith("broken: test_")
