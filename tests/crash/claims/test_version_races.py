"""A row of an unknown version is put on hold while a worker registers that version: it never stays held."""

from __future__ import annotations

import pytest

from stepwell._store import instances
from tests.support.race import Plain, Race, Session

LABEL = ["Plain@1"]


async def stranded(race: Race) -> tuple[int, Session, Session]:
    """A row of a version that no live worker has, a claimer that found it, and a worker with the version."""
    handle = await race.harness.engine.start(Plain, {})
    return handle.id, await race.session(), await race.session()


@pytest.mark.parametrize(("looks_again", "hold"), [(True, None), (False, "version")])
async def test_a_row_held_while_its_version_registers_is_admitted_by_the_recheck(
    race: Race, looks_again: bool, hold: str | None
) -> None:
    """The claimer that held the row checks the versions again after its commit."""
    row, claimer, newcomer = await stranded(race)
    await claimer.begin()
    assert list(await instances.hold_unknown_versions(claimer, [row])) == [row]
    await race.worker(newcomer, LABEL)
    assert await instances.admit_versions(newcomer, LABEL, also_unfit=True) == set()

    await claimer.commit()
    if looks_again:
        assert await instances.admit_versions(claimer) == {"default"}

    assert await race.row(row, "hold") == (hold,)


@pytest.mark.parametrize(("looks", "hold"), [(True, None), (False, "version")])
async def test_a_row_held_before_its_version_registers_is_admitted_by_the_new_one(
    race: Race, looks: bool, hold: str | None
) -> None:
    row, claimer, newcomer = await stranded(race)
    await newcomer.begin()
    await race.worker(newcomer, LABEL)
    assert list(await instances.hold_unknown_versions(claimer, [row])) == [row]
    assert await instances.admit_versions(claimer) == set()

    await newcomer.commit()
    if looks:
        assert await instances.admit_versions(newcomer, LABEL, also_unfit=True) == {"default"}

    assert await race.row(row, "hold") == (hold,)


@pytest.mark.parametrize(("guard", "held"), [("and not exists (", []), ("and true or exists (", [1])])
async def test_a_row_is_not_held_if_its_version_registered_meanwhile(
    race: Race, guard: str, held: list[int]
) -> None:
    row, claimer, newcomer = await stranded(race)
    claimer.change("instances/hold_unknown_versions", ("and not exists (", guard))

    await race.worker(newcomer, LABEL)

    assert list(await instances.hold_unknown_versions(claimer, [row])) == held
