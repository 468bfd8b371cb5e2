"""A row that nobody can run is held while a worker that can run it registers: it is never left held."""

from __future__ import annotations

import pytest

from stepwell._store import instances
from tests.support.race import Plain, Race, Session

LABEL = ["Plain@1"]


async def stranded(race: Race) -> tuple[int, Session, Session]:
    """A row of a version that no live worker registers, a claimer that found it, and one who brings the version."""
    handle = await race.harness.engine.start(Plain, {})
    return handle.id, await race.session(), await race.session()


@pytest.mark.parametrize(("looks_again", "hold"), [(True, None), (False, "version")])
async def test_a_row_held_while_its_version_registers_is_freed_by_the_second_look_of_who_held_it(
    race: Race, looks_again: bool, hold: str | None
) -> None:
    row, claimer, newcomer = await stranded(race)
    await claimer.begin()
    assert list(await instances.hold_foreign(claimer, [row])) == [row]
    await race.worker(newcomer, LABEL)
    assert await instances.unhold_version(newcomer, LABEL, also_unfit=True) == set()

    await claimer.commit()
    if looks_again:
        assert await instances.unhold_version(claimer) == {"default"}

    assert await race.row(row, "hold") == (hold,)


@pytest.mark.parametrize(("looks", "hold"), [(True, None), (False, "version")])
async def test_a_row_held_just_before_its_version_registers_is_freed_by_the_newcomer(
    race: Race, looks: bool, hold: str | None
) -> None:
    row, claimer, newcomer = await stranded(race)
    await newcomer.begin()
    await race.worker(newcomer, LABEL)
    assert list(await instances.hold_foreign(claimer, [row])) == [row]
    assert await instances.unhold_version(claimer) == set()

    await newcomer.commit()
    if looks:
        assert await instances.unhold_version(newcomer, LABEL, also_unfit=True) == {"default"}

    assert await race.row(row, "hold") == (hold,)


@pytest.mark.parametrize(("guard", "held"), [("and not exists (", []), ("and true or exists (", [1])])
async def test_a_row_whose_version_has_registered_meanwhile_is_not_held(
    race: Race, guard: str, held: list[int]
) -> None:
    row, claimer, newcomer = await stranded(race)
    claimer.change("instances/hold_foreign", ("and not exists (", guard))

    await race.worker(newcomer, LABEL)

    assert list(await instances.hold_foreign(claimer, [row])) == held
