"""The report of explored crashes: what differs, where, and what to do about it; as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from stepwell.testing.crashes.snapshot import EndState, Leaves
from stepwell.testing.drain_report import Ran

MISSING = "nothing"


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference."""

    what: str
    expected: str
    came: str
    is_effect: bool = False


@dataclass(frozen=True, slots=True)
class Crash:
    """One run with a crash: before or after the nth commit, and what was different in the end."""

    number: int
    ran: Ran
    side: str
    troubles: list[str]
    differences: list[Difference] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.troubles and not self.differences

    @property
    def advice(self) -> str | None:
        """What to do, if that is known."""
        step = self.ran.label
        effects = sorted({d.what for d in self.differences if d.is_effect})
        if effects and self.side == "before":
            return (
                f"{', '.join(effects)}: {step} runs again when its worker dies before the commit, so its effects must "
                "be repeatable. Give the external system a key that stays the same (f\"{ctx.id}:{ctx.step}\"), or, "
                "if the effect is a row in this database, make the step transactional."
            )
        if self.side == "after" and not self.ok:
            return (
                f"{step} was committed, and does not run again: the difference comes from later steps, or from the "
                "scenario itself. Does something depend on ctx.attempt, on time, or on what only lives in memory?"
            )
        if not self.ok:
            return f"{step} runs again after this crash, with ctx.attempt one higher, and then ends differently."
        return None


class Report:
    """The result of explored crashes. `ok` if nothing differs; `str()` is the table."""

    def __init__(self, commits: Sequence[str], crashes: Sequence[Crash]) -> None:
        self.commits = list(commits)
        self.crashes = list(crashes)

    @property
    def ok(self) -> bool:
        return all(crash.ok for crash in self.crashes)

    @property
    def differences(self) -> list[Crash]:
        """The crashes after which something was different."""
        return [crash for crash in self.crashes if not crash.ok]

    def check(self) -> None:
        """Raise AssertionError with the table unless all is ok."""
        if not self.ok:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        explored = len({crash.number for crash in self.crashes})
        some = "" if explored == len(self.commits) else f" (at {explored} of them)"
        head = f"{len(self.commits)} commits{some}, {len(self.crashes)} crashes: "
        if self.ok:
            return head + "every one came out as without a crash"
        table = _table([("commit", "crash", "what", "expected", "came"), *self._rows()])
        advice = dict.fromkeys(crash.advice for crash in self.differences if crash.advice is not None)
        return "\n".join([f"{head}{len(self.differences)} came out differently", "", *table, "", *advice])

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for crash in self.differences:
            place = (f"{crash.number}. {crash.ran}", crash.side)
            for trouble in crash.troubles:
                yield (*place, trouble, "", "")
            for difference in crash.differences:
                yield (*place, difference.what, difference.expected, difference.came)

    def __repr__(self) -> str:
        return f"<Report: {len(self.differences)} of {len(self.crashes)} crashes came out differently>"


def compare(expected: EndState, again: EndState, came: EndState) -> list[Difference]:
    """The differences from the plain runs, without those between these two."""
    found = list(_compare_leaves("returned", expected.returned, again.returned, came.returned))
    for name in dict.fromkeys((*expected.instances, *came.instances)):
        parts = [end_state.instances.get(name) for end_state in (expected, again, came)]
        found += _compare_instance(name, *parts)
    return found + list(_compare_effects(expected, again, came))


def _compare_instance(
    name: str, expected: Leaves | None, again: Leaves | None, came: Leaves | None
) -> list[Difference]:
    if expected is None or again is None:
        return [] if came is None or again is not None else [Difference(name, MISSING, _status(came))]
    if came is None:
        return [Difference(name, _status(expected), MISSING)]
    return list(_compare_leaves(name, expected, again, came))


def _compare_leaves(name: str, expected: Leaves, again: Leaves, came: Leaves) -> Iterator[Difference]:
    shaky = {place for place in {*expected, *again} if _differs(expected, again, place)}
    for place in dict.fromkeys((*expected, *came)):
        if place not in shaky and _differs(expected, came, place):
            what = f"{name}: {place}" if place else name
            yield Difference(what, _shown(expected, place), _shown(came, place))


def _compare_effects(expected: EndState, again: EndState, came: EndState) -> Iterator[Difference]:
    """Count effects by name and facts; facts that already differ between the plain runs are left out."""
    shaky = _shaky_facts(expected, again)
    wanted, found = _counted(expected, shaky), _counted(came, shaky)
    for effect in dict.fromkeys((*wanted, *found)):
        if wanted[effect] != found[effect]:
            yield Difference(f"effect {effect}", _times(wanted[effect]), _times(found[effect]), is_effect=True)


def _shaky_facts(expected: EndState, again: EndState) -> set[tuple[str, str]]:
    shaky = set()
    for name in {effect.name for effect in expected.effects}:
        pairs = zip(
            (e for e in expected.effects if e.name == name), (e for e in again.effects if e.name == name), strict=False
        )
        for one, other in pairs:
            facts = {*one.facts, *other.facts}
            shaky |= {(name, fact) for fact in facts if one.facts.get(fact) != other.facts.get(fact)}
    return shaky


def _counted(end_state: EndState, shaky: set[tuple[str, str]]) -> Counter[str]:
    return Counter(
        str(type(effect)(effect.name, {k: v for k, v in effect.facts.items() if (effect.name, k) not in shaky}))
        for effect in end_state.effects
    )


def _differs(one: Leaves, other: Leaves, place: str) -> bool:
    return (place in one) != (place in other) or one.get(place) != other.get(place)


def _shown(leaves: Leaves, place: str) -> str:
    return repr(leaves[place]) if place in leaves else MISSING


def _status(leaves: Leaves) -> str:
    return str(leaves.get("status"))


def _times(number: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number} times")


def _table(rows: list[tuple[Any, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]
