"""What a mutation is, where its text stands, and how it gets into a copy of the tree."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.dump_statements import STATEMENTS, function_name

ROOT = Path(__file__).parents[3]
STORE = Path("src/stepwell/_store")
GRANTS = STORE / "migrations/grants.sql"  # the last script of every migration, whatever the others are called
SCHEMA = STORE / "schema.sql"  # each function as all migrations leave it


ANY, OURS = "{schema}.", "stepwell."


def for_any_schema(text: str) -> str:
    """As a statement's file has it."""
    return text.replace(OURS, ANY)


class MutationError(Exception):
    """A mutation that does not fit the tree."""


@dataclass(frozen=True)
class Mutation:
    """One guard taken away, wherever it stands.

    `place` is a statement ("instances/reap", the file in sql/) or a function of the schema ("stepwell.signal").
    A statement that the SQL functions run too is mutated in both.
    """

    name: str
    place: str
    find: str
    replace: str
    tests: tuple[str, ...]

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions of the schema that it changes."""
        if self.place.startswith("stepwell."):
            return (self.place,)
        return (f"stepwell.{function_name(self.place)}",) if self.place in STATEMENTS else ()

    @property
    def statement(self) -> Path | None:
        """The statement's file that it changes."""
        return None if self.place.startswith("stepwell.") else STORE / "sql" / f"{self.place}.sql"

    def check(self, tree: Path) -> None:
        """Raise unless its text is there once, wherever it has to be."""
        for _ in self._changed(tree):
            pass

    def apply(self, tree: Path) -> None:
        """Write it into a copy of the tree. Functions are created again after the migrations."""
        for path, text in list(self._changed(tree)):
            before = (tree / path).read_text("utf-8") if path == GRANTS else ""
            (tree / path).write_text(f"{before}\n{text}" if before else text, "utf-8")

    def _changed(self, tree: Path) -> Iterator[tuple[Path, str]]:
        if self.statement is not None:
            if not (tree / self.statement).is_file():
                raise MutationError(f"{self.name}: there is no statement {self.place}")
            text = (tree / self.statement).read_text("utf-8")
            yield self.statement, for_any_schema(self._mutated(self.place, text.replace(ANY, OURS)))
        for function in self.functions:
            yield GRANTS, self._mutated(function, self._definition(tree, function))

    def _mutated(self, place: str, text: str) -> str:
        if (found := text.count(self.find)) != 1:
            raise MutationError(f"{self.name}: {place} has the text {found} times, 1 is expected: {self.find!r}")
        return text.replace(self.find, self.replace)

    def _definition(self, tree: Path, function: str) -> str:
        head = f"CREATE OR REPLACE FUNCTION {re.escape(function)}\\("
        found = re.findall(
            rf"^{head}.*?^\$function\$;$", (tree / SCHEMA).read_text("utf-8"), re.MULTILINE | re.DOTALL
        )
        if len(found) != 1:
            raise MutationError(f"{self.name}: {SCHEMA} has {len(found)} functions {function}, 1 is expected")
        return f"{found[0]}\n"
